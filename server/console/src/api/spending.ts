import { onEvent } from './watch'
import type { WatchedEvent } from './watch'

/** Seconds of one bar. */
export const BAR_SECONDS = 10
const BARS = 12
const MOST_SESSIONS = 20_000

/** Amounts in bars of time; the last bar is the newest. */
interface Series {
  newest: number
  bars: number[]
}

/** What is counted of the whole fleet: accepted steps and checkpoints, tokens, and US dollars. */
export type FleetSeries = 'progress' | 'tokens' | 'cost'

const fleet = new Map<string, Series>()
const sessions = new Map<string, Series>()

function add(series: Map<string, Series>, key: string, at: number, amount: number): void {
  if (!(amount > 0)) return
  const bar = Math.floor(at / BAR_SECONDS)
  if (series.size > MOST_SESSIONS) series.clear()
  const known = series.get(key) ?? { newest: bar, bars: Array<number>(BARS).fill(0) }
  series.set(key, known)
  while (known.newest < bar) {
    known.bars.shift()
    known.bars.push(0)
    known.newest = Math.max(known.newest + 1, bar - BARS)
  }
  const place = BARS - 1 - (known.newest - bar)
  if (place >= 0) known.bars[place]! += amount
}

function barsOf(known: Series | undefined, now: number): readonly number[] {
  if (!known) return []
  const past = Math.max(0, Math.floor(now / BAR_SECONDS) - known.newest)
  return past >= BARS ? [] : [...known.bars.slice(past), ...Array<number>(past).fill(0)]
}

/** Count what an event says about progress, tokens and cost. */
export function countEvent({ type, agent_id, session_id, data, time }: WatchedEvent): void {
  const at = Date.parse(time) / 1000
  if (type === 'checkpoint_saved' || (type === 'step_completed' && data.verdict === 'ACCEPT')) add(fleet, 'progress', at, 1)
  if (type !== 'llm_call_completed') return
  const tokens = Number(data.input_tokens ?? 0) + Number(data.output_tokens ?? 0)
  add(sessions, `${agent_id}\n${session_id}`, at, tokens)
  add(fleet, 'tokens', at, tokens)
  add(fleet, 'cost', at, Number(data.cost_usd ?? 0))
}

/** Tokens of a session in each of the last bars, as far as this page has seen them; oldest first. */
export const tokensOf = (agentId: string, sessionId: string, now: number): readonly number[] => barsOf(sessions.get(`${agentId}\n${sessionId}`), now)

/** The whole fleet in each of the last bars, as far as this page has seen it; oldest first. */
export const fleetBars = (name: FleetSeries, now: number): readonly number[] => barsOf(fleet.get(name), now)

/** Watch what the fleet spends and achieves. */
export const watchSpending = (): (() => void) => onEvent(countEvent)
