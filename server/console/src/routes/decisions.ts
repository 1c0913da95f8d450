/** Decisions that an operator can make about a worker, with button labels. */
export const DECISIONS = { more_time: 'More time', hand_off: 'Hand off', terminate: 'Terminate' } as const

export type Decision = keyof typeof DECISIONS
