import type { Ticket, Timeline, TimelineEntry } from '../api/schema'

/** An event of one or several tickets of an incident. */
export interface IncidentEntry extends TimelineEntry {
  tickets: readonly Ticket[]
}

/** Seconds within which equal events of several tickets are one entry. */
const SAME_SECONDS = 60

/** Merge the timelines of tickets, oldest entry first. */
export function mergeTimelines(tickets: readonly Ticket[], timelines: readonly Timeline[]): IncidentEntry[] {
  const all = timelines
    .flatMap(({ timeline }, index) => timeline.map((entry) => ({ ...entry, ticket: tickets[index]! })))
    .sort((a, b) => a.at - b.at)
  const merged: (IncidentEntry & { tickets: Ticket[] })[] = []
  const latest = new Map<string, (typeof merged)[number]>()
  for (const { ticket, ...entry } of all) {
    // An event of a worker is in the timelines of all its tickets.
    const key = entry.event_id || `${entry.what}\n${entry.text}\n${entry.by}`
    const same = latest.get(key)
    if (same && entry.at - same.at <= SAME_SECONDS) {
      if (!same.tickets.includes(ticket)) same.tickets.push(ticket)
      continue
    }
    const added = { ...entry, tickets: [ticket] }
    merged.push(added)
    latest.set(key, added)
  }
  return merged
}

/** The runbooks of symptoms, by kind of finding. */
const RUNBOOKS: Record<string, string> = {
  checkpoint_stale: 'QueenrightCheckpointStale',
  circuit_breaker_open: 'QueenrightCircuitBreakerOpen',
  doom_loop: 'QueenrightLoop',
  error_rate: 'QueenrightErrorRate',
  error_streak: 'QueenrightErrorRate',
  heartbeat_missing: 'QueenrightHeartbeatMissing',
  no_tokens: 'QueenrightWorkerStalled',
  no_tool_calls: 'QueenrightWorkerStalled',
  recovery_failed: 'QueenrightRecoveryFailed',
  retry_storm: 'QueenrightRetryStorm',
  stall: 'QueenrightWorkerStalled',
  token_burn: 'QueenrightTokenRate',
  tool_timeout: 'QueenrightWorkerStalledInPhase',
  zero_progress: 'QueenrightLoop',
}

/** List the runbooks of tickets: those of the findings, most frequent first, then that of the paging alert. */
export function listRunbooks(tickets: readonly Pick<Ticket, 'kind' | 'words_kind'>[]): string[] {
  const counts = new Map<string, number>()
  for (const { kind, words_kind } of tickets) {
    const name = RUNBOOKS[words_kind ?? kind]
    if (name) counts.set(name, (counts.get(name) ?? 0) + 1)
  }
  return [...[...counts].sort(([, a], [, b]) => b - a).map(([name]) => name), 'QueenrightIntervention']
}
