/** What an operator can decide about a worker, as buttons say it. */
export const DECISIONS = { more_time: 'More time', hand_off: 'Hand off', terminate: 'Terminate' } as const

export type Decision = keyof typeof DECISIONS
