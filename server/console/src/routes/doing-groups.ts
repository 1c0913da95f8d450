import type { StatusLadder } from '../api/schema'

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

/** What limits actions, without the emergency stop, which has a line of its own. */
export const otherBrakes = ({ brakes }: { brakes: readonly string[] }): readonly string[] => brakes.filter((brake) => !brake.startsWith('The emergency stop'))
