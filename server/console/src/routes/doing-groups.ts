import type { Status, StatusLadder } from '../api/schema'
import { count, counted, duration, timeOfDay } from '../format'

/** Workers about which the same is done. */
export interface Doing {
  what: string
  workers: readonly StatusLadder[]
  /** When the last of them was acted on. */
  at: number | null
}

/** Group workers by what is done about them, in the order of the first one of each. */
export function groupByAction(ladders: readonly StatusLadder[]): Doing[] {
  const found = new Map<string, StatusLadder[]>()
  for (const ladder of ladders) found.set(ladder.what, [...(found.get(ladder.what) ?? []), ladder])
  return [...found].map(([what, workers]) => ({ what, workers, at: Math.max(...workers.map((one) => one.acted_at ?? 0)) || null }))
}

/** What limits actions, a sentence each; the emergency stop has a line of its own. */
export function limitsOf({ storm, budget, notices }: Pick<Status['acting'], 'storm' | 'budget' | 'notices'>, now: number): readonly string[] {
  return [
    ...(storm.since === null ? [] : [`A storm since ${timeOfDay(storm.since)}: ${counted(storm.workers, 'worker')} worsened at once.`]),
    ...(budget.free_at > now ? [`Limit of ${count(budget.most)} interventions per minute reached; the next in ${duration(budget.free_at - now)}.`] : []),
    ...notices,
  ]
}
