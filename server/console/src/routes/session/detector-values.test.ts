import { expect, test } from 'vitest'
import { countText } from './detector-values'

const loop = { detector: 'doom_loop', value: 2, limit: 3, text: 'identical calls in a row: search' } as const

test('count shows how many more make its detector fire', () => {
  expect(countText(loop)).toBe('identical calls in a row: search; fires at 1 more')
  expect(countText({ ...loop, value: 3 })).toBe('identical calls in a row: search; has fired')
  expect(countText({ ...loop, value: 0.25, limit: 0.5, text: 'share of the last 8 calls that failed' })).toBe('share of the last 8 calls that failed')
})
