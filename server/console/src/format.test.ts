import { expect, test } from 'vitest'
import { ago, count, counted, duration, money, took } from './format'

/** A text whose numbers are not parted from their units. */
const unbroken = (text: string): string => text.replaceAll(/(\d) (?=[a-z])/g, '$1\u00a0')

test.each([
  [0, '0 s'],
  [59.9, '59 s'],
  [60, '1 min'],
  [192, '3 min 12 s'],
  [600, '10 min'],
  [3_600, '1 h'],
  [7_500, '2 h 5 min'],
  [86_400 + 4 * 3_600, '1 d 4 h'],
  [-5, '0 s'],
])('a duration of %d seconds is %s', (seconds, text) => {
  expect(duration(seconds)).toBe(unbroken(text))
})

test.each([
  [100, 104, 'now'],
  [100, 145, '45 s ago'],
  [0, 7_300, '2 h ago'],
  [100, 90, 'now'],
])('what happened at %d is, at %d, %s', (at, now, text) => {
  expect(ago(at, now)).toBe(unbroken(text))
})

test.each([
  [null, '—'],
  [undefined, '—'],
  [0, '$0'],
  [0.0031, '$0.0031'],
  [1.239, '$1.24'],
  [1_240.4, '$1,240'],
])('%s dollars are %s', (value, text) => {
  expect(money(value)).toBe(text)
})

test('large numbers are short, and a noun follows its number', () => {
  expect([count(9_999), count(12_400), count(3_100_000)]).toEqual(['9,999', '12.4K', '3.1M'])
  expect([counted(1, 'worker'), counted(3, 'worker')]).toEqual(['1 worker', '3 workers'])
  expect([took(0.34), took(3.21), took(65)]).toEqual(['340 ms', '3.2 s', '1 min 5 s'].map(unbroken))
})
