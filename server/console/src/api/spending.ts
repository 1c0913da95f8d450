import { data, GET } from './client'
import { onEvent } from './watch'
import type { WatchedEvent } from './watch'

/** Seconds per bar. */
export const BAR_SECONDS = 10
const BARS = 12
const MAX_SERIES = 60_000

/** Amounts per bar. The last bar is the newest. */
interface Series {
  newest: number
  bars: number[]
}

/** Series of the fleet and of each session: accepted steps and checkpoints, tokens, and US dollars. */
export type SeriesName = 'progress' | 'tokens' | 'cost'

const FLEET = ''
const series = new Map<string, Series>()
/** The time from which all events are counted, in Unix seconds. */
let coveredFrom = 0

function add(name: SeriesName, session: string, at: number, amount: number): void {
  if (!(amount > 0)) return
  const bar = Math.floor(at / BAR_SECONDS)
  if (series.size > MAX_SERIES) {
    series.clear()
    coveredFrom = at
  }
  for (const key of [`${name}\n${session}`, `${name}\n${FLEET}`]) {
    const entry = series.get(key) ?? { newest: bar, bars: Array<number>(BARS).fill(0) }
    series.set(key, entry)
    while (entry.newest < bar) {
      entry.bars.shift()
      entry.bars.push(0)
      entry.newest = Math.max(entry.newest + 1, bar - BARS)
    }
    const index = BARS - 1 - (entry.newest - bar)
    if (index >= 0) entry.bars[index]! += amount
  }
}

function listBars(entry: Series | undefined, now: number): readonly number[] {
  if (!entry) return []
  const newest = Math.max(Math.floor(now / BAR_SECONDS), entry.newest)
  const missingBars = newest - entry.newest
  if (missingBars >= BARS) return []
  const covered = Math.max(1, newest - Math.floor(coveredFrom / BAR_SECONDS) + 1)
  return [...entry.bars.slice(missingBars), ...Array<number>(missingBars).fill(0)].slice(-covered)
}

/** Count the progress, tokens and cost in an event. */
export function countEvent({ type, agent_id, session_id, data, time: at }: Omit<WatchedEvent, 'id'>): void {
  const session = `${agent_id}\n${session_id}`
  if (type === 'checkpoint_saved' || (type === 'step_completed' && data.verdict === 'ACCEPT')) add('progress', session, at, 1)
  if (type !== 'llm_call_completed') return
  add('tokens', session, at, Number(data.input_tokens ?? 0) + Number(data.output_tokens ?? 0))
  add('cost', session, at, Number(data.cost_usd ?? 0))
}

/** Set the time from which all events are counted. There are no earlier bars. */
export function setCoveredFrom(at: number): void {
  coveredFrom = at
}

/** The fleet's amount per minute, over the last minute or the counted part of it. */
export function fleetPerMinute(name: SeriesName, now: number): number {
  const lastMinute = fleetBars(name, now).slice(-60 / BAR_SECONDS)
  return (lastMinute.reduce((sum, bar) => sum + bar, 0) * 60) / Math.min(60, Math.max(1, now - coveredFrom))
}

/** The latest counted bars of a session, oldest first. */
export const sessionBars = (name: SeriesName, agentId: string, sessionId: string, now: number): readonly number[] => listBars(series.get(`${name}\n${agentId}\n${sessionId}`), now)

/** The latest counted bars of the fleet, oldest first. */
export const fleetBars = (name: SeriesName, now: number): readonly number[] => listBars(series.get(`${name}\n${FLEET}`), now)

const COUNTED_TYPES = ['step_completed', 'checkpoint_saved', 'llm_call_completed'] as const
const HISTORY = 500

/** Count progress and spending of the fleet, starting with the events of the latest bars. */
export function watchSpending(): void {
  const streamed = new Set<string>()
  let isRead = false
  onEvent((event) => {
    if (!isRead) streamed.add(event.id)
    countEvent(event)
  })
  const now = Date.now() / 1000
  const since = now - BARS * BAR_SECONDS
  setCoveredFrom(now)
  data(GET('/api/audit', { params: { query: { type: [...COUNTED_TYPES], since, limit: HISTORY } } }))
    .then(({ events, next }) => {
      // A busy fleet has more events than are read, so the bars begin at the oldest read event.
      setCoveredFrom(next ? Math.min(...events.map((event) => event.time)) : since)
      for (const event of events) if (!streamed.has(event.id)) countEvent(event)
    })
    // Without past events, the bars begin with the streamed events.
    .catch(() => undefined)
    .finally(() => {
      isRead = true
      streamed.clear()
    })
}
