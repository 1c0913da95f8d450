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
  const workersByAction = new Map<string, StatusLadder[]>()
  for (const ladder of ladders) workersByAction.set(ladder.what, [...(workersByAction.get(ladder.what) ?? []), ladder])
  return [...workersByAction].map(([what, workers]) => ({ what, workers, at: Math.max(...workers.map((worker) => worker.acted_at ?? 0)) || null }))
}

/** Whether the actions of the last minute use up the budget. */
export const isBudgetSpent = ({ most, used }: Budget): boolean => most > 0 && used >= most

/** List what limits actions, as sentences. The emergency stop is shown separately. */
export function listLimits({ storm, budget, notices }: Pick<Status['acting'], 'storm' | 'budget' | 'notices'>, now: number): readonly string[] {
  return [
    ...(storm.since === null ? [] : [`A storm since ${timeOfDay(storm.since)}: ${counted(storm.workers, 'worker')} got worse at the same time.`]),
    ...(isBudgetSpent(budget) && budget.free_at > now ? [`Limit of ${count(budget.most)} interventions per minute reached; the next in ${duration(budget.free_at - now)}.`] : []),
    ...notices,
  ]
}
