import { onEvent } from './watch'
import type { WatchedEvent } from './watch'

/** Seconds of one bar. */
export const BAR_SECONDS = 10
const BARS = 12
const MOST_SESSIONS = 20_000

const burns = new Map<string, { newest: number; tokens: number[] }>()

/** Count the tokens of a model call in its session. */
export function countTokens({ type, agent_id, session_id, data, time }: WatchedEvent): void {
  const tokens = Number(data.input_tokens ?? 0) + Number(data.output_tokens ?? 0)
  if (type !== 'llm_call_completed' || !(tokens > 0)) return
  const key = `${agent_id}\n${session_id}`
  const bar = Math.floor(Date.parse(time) / 1000 / BAR_SECONDS)
  if (burns.size > MOST_SESSIONS) burns.clear()
  const known = burns.get(key) ?? { newest: bar, tokens: Array<number>(BARS).fill(0) }
  burns.set(key, known)
  while (known.newest < bar) {
    known.tokens.shift()
    known.tokens.push(0)
    known.newest = Math.max(known.newest + 1, bar - BARS)
  }
  const place = BARS - 1 - (known.newest - bar)
  if (place >= 0) known.tokens[place]! += tokens
}

/** Tokens of a session in each of the last bars, as far as this page has seen them; oldest first. */
export function burnOf(agentId: string, sessionId: string, now: number): readonly number[] {
  const known = burns.get(`${agentId}\n${sessionId}`)
  if (!known) return []
  const past = Math.max(0, Math.floor(now / BAR_SECONDS) - known.newest)
  return past >= BARS ? [] : [...known.tokens.slice(past), ...Array<number>(past).fill(0)]
}

/** Watch the fleet's model calls. */
export const watchBurn = (): (() => void) => onEvent(countTokens)
