import { expect, test } from 'vitest'
import { parseDuration } from './silence'

test.each([
  ['90m', 5400],
  ['45 min', 2700],
  ['1.5h', 5400],
  ['2D', 172_800],
])('the duration %s has %d seconds', (text, seconds) => expect(parseDuration(text)).toBe(seconds))

test.each(['', '10', 'soon', '30s', '0m', '31d', '-1h'])('%j is refused', (text) => expect(() => parseDuration(text)).toThrow('not a duration'))
