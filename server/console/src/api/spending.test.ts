import { expect, test } from 'vitest'
import { BAR_SECONDS, countEvent, fleetBars, fleetPerMinute, sessionBars, setCoveredFrom } from './spending'

const countTokens = (agent: string, session: string, now: number) => sessionBars('tokens', agent, session, now)
const event = (type: string, at: number, data: Record<string, unknown>, session = 's') =>
  countEvent({ type, time: at, agent_id: 'a', session_id: session, data })
const call = (at: number, tokens: number, session = 's') => event('llm_call_completed', at, { input_tokens: tokens, output_tokens: 0 }, session)

test('tokens are counted per session in bars up to now', () => {
  const start = 1000 * BAR_SECONDS
  call(start, 5)
  call(start + 1, 5)
  call(start + 2 * BAR_SECONDS, 7)
  call(start, 1, 'other')

  expect(countTokens('a', 's', start + 2 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 7])
  expect(countTokens('a', 's', start + 4 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 10, 0, 7, 0, 0])
  expect(countTokens('a', 's', start + 40 * BAR_SECONDS)).toEqual([])
  expect(countTokens('a', 'nobody', start)).toEqual([])
})

test('late call counts in its own bar; call after a long silence starts over', () => {
  const start = 5000 * BAR_SECONDS
  call(start, 1, 'late')
  call(start - BAR_SECONDS, 2, 'late')
  call(start - 99 * BAR_SECONDS, 3, 'late')
  expect(countTokens('a', 'late', start).slice(-2)).toEqual([2, 1])
  call(start + 500 * BAR_SECONDS, 4, 'late')
  expect(countTokens('a', 'late', start + 500 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4])
})

test('fleet totals include accepted steps, checkpoints, tokens and cost', () => {
  const start = 9000 * BAR_SECONDS
  event('step_completed', start, { verdict: 'ACCEPT' })
  event('step_completed', start, { verdict: 'RETRY' })
  event('checkpoint_saved', start, {}, 'other')
  event('llm_call_completed', start, { input_tokens: 10, output_tokens: 1, cost_usd: 0.5 }, 'other')
  event('llm_call_completed', start, { output_tokens: 2, cost_usd: null })

  expect(fleetBars('progress', start).at(-1)).toBe(2)
  expect(fleetBars('tokens', start).at(-1)).toBe(13)
  expect(fleetBars('cost', start).at(-1)).toBe(0.5)
})

test('bars and rates cover only the counted time', () => {
  const start = 20_000 * BAR_SECONDS
  call(start + 1, 4, 'busy')
  call(start + BAR_SECONDS, 6, 'busy')
  setCoveredFrom(start)

  expect(countTokens('a', 'busy', start + 15)).toEqual([4, 6])
  expect(fleetPerMinute('tokens', start + 15)).toBe(40)
  expect(fleetPerMinute('tokens', start + 30)).toBe(20)
  expect(countTokens('a', 'busy', start + 40)).toEqual([4, 6, 0, 0, 0])
  setCoveredFrom(0)
})
