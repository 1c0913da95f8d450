import { expect, test } from 'vitest'
import { BAR_SECONDS, countEvent, fleetBars, fleetPerMinute, sessionBars, setCoveredFrom } from './spending'

const tokensOf = (agent: string, session: string, now: number) => sessionBars('tokens', agent, session, now)
const event = (type: string, at: number, data: Record<string, unknown>, session = 's') =>
  countEvent({ type, time: at, agent_id: 'a', session_id: session, data })
const call = (at: number, tokens: number, session = 's') => event('llm_call_completed', at, { input_tokens: tokens, output_tokens: 0 }, session)

test('tokens are counted in bars up to now, per session', () => {
  const start = 1000 * BAR_SECONDS
  call(start, 5)
  call(start + 1, 5)
  call(start + 2 * BAR_SECONDS, 7)
  call(start, 1, 'other')

  expect(tokensOf('a', 's', start + 2 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 7])
  expect(tokensOf('a', 's', start + 4 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 10, 0, 7, 0, 0])
  expect(tokensOf('a', 's', start + 40 * BAR_SECONDS)).toEqual([])
  expect(tokensOf('a', 'nobody', start)).toEqual([])
})

test('a late call counts in its own bar, and one after a long silence alone', () => {
  const start = 5000 * BAR_SECONDS
  call(start, 1, 'late')
  call(start - BAR_SECONDS, 2, 'late')
  call(start - 99 * BAR_SECONDS, 3, 'late')
  expect(tokensOf('a', 'late', start).slice(-2)).toEqual([2, 1])
  call(start + 500 * BAR_SECONDS, 4, 'late')
  expect(tokensOf('a', 'late', start + 500 * BAR_SECONDS)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4])
})

test('the fleet is counted as a whole: accepted steps, checkpoints, tokens and cost', () => {
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

test('bars begin where the counted events begin, and the rate is over that time', () => {
  const start = 20_000 * BAR_SECONDS
  call(start + 1, 4, 'busy')
  call(start + BAR_SECONDS, 6, 'busy')
  setCoveredFrom(start)

  expect(tokensOf('a', 'busy', start + 15)).toEqual([4, 6])
  expect(fleetPerMinute('tokens', start + 15)).toBe(40)
  expect(fleetPerMinute('tokens', start + 30)).toBe(20)
  expect(tokensOf('a', 'busy', start + 40)).toEqual([4, 6, 0, 0, 0])
  setCoveredFrom(0)
})
