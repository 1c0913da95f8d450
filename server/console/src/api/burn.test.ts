import { expect, test } from 'vitest'
import { BAR_SECONDS, burnOf, countTokens } from './burn'

const call = (at: number, tokens: number, session = 's') =>
  countTokens({ type: 'llm_call_completed', time: new Date(at * 1000).toISOString(), agent_id: 'a', session_id: session, data: { input_tokens: tokens, output_tokens: 0 } })

test('tokens are counted in bars up to now, per session', () => {
  const start = 1000 * BAR_SECONDS
  call(start, 5)
  call(start + 1, 5)
  call(start + 2 * BAR_SECONDS, 7)
  call(start, 1, 'other')

  expect(burnOf('a', 's', start + 2 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 7])
  expect(burnOf('a', 's', start + 4 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 10, 0, 7, 0, 0])
  expect(burnOf('a', 's', start + 40 * BAR_SECONDS)).toEqual([])
  expect(burnOf('a', 'nobody', start)).toEqual([])
})

test('a late call counts in its own bar, and one after a long silence alone', () => {
  const start = 5000 * BAR_SECONDS
  call(start, 1, 'late')
  call(start - BAR_SECONDS, 2, 'late')
  call(start - 99 * BAR_SECONDS, 3, 'late')
  expect(burnOf('a', 'late', start).slice(-2)).toEqual([2, 1])
  call(start + 500 * BAR_SECONDS, 4, 'late')
  expect(burnOf('a', 'late', start + 500 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4])
})
