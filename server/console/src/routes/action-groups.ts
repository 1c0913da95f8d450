import type { Budget, Status, StatusLadder } from '../api/schema'
import { count, counted, duration, timeOfDay } from '../format'

/** Workers with the same action. */
export interface ActionGroup {
  what: string
  workers: readonly StatusLadder[]
  /** When the last action was taken. */
  at: number | null
}

/** Group workers by their action, in the order of the first worker of each group. */
export function groupByAction(ladders: readonly StatusLadder[]): ActionGroup[] {
  const found = new Map<string, StatusLadder[]>()
  for (const ladder of ladders) found.set(ladder.what, [...(found.get(ladder.what) ?? []), ladder])
  return [...found].map(([what, workers]) => ({ what, workers, at: Math.max(...workers.map((one) => one.acted_at ?? 0)) || null }))
}

/** Whether the actions of the last minute use up the budget. */
export const isBudgetSpent = ({ most, used }: Budget): boolean => most > 0 && used >= most

/** List what limits actions, as sentences. The emergency stop is shown separately. */
export function listLimits({ storm, budget, notices }: Pick<Status['acting'], 'storm' | 'budget' | 'notices'>, now: number): readonly string[] {
  return [
    ...(storm.since === null ? [] : [`A storm since ${timeOfDay(storm.since)}: ${counted(storm.workers, 'worker')} worsened at once.`]),
    ...(isBudgetSpent(budget) && budget.free_at > now ? [`Limit of ${count(budget.most)} interventions per minute reached; the next in ${duration(budget.free_at - now)}.`] : []),
    ...notices,
  ]
}
