import type { AgentRow, operations } from '../api/schema'
import { timeOfDay } from '../format'

export const HEALTH = ['failing', 'stuck', 'degraded', 'healthy', 'ended'] as const
/** The fleet is what runs, unless the address says otherwise. */
export const RUNNING = HEALTH.filter((name) => name !== 'ended').join(',')
export const ACTIVITY = ['working', 'waiting', 'paused', 'held', 'queued', 'idle'] as const
const ORDERS = ['attention', 'agent', 'activity', 'progress', 'tokens', 'cost']

/** Filters and order of the fleet, as the address has them. */
export interface Filters {
  search?: string
  health?: string
  activity?: string
  owner?: string
  repository?: string
  sort?: NonNullable<NonNullable<operations['list_agents']['parameters']['query']>['sort']>
}

/** Filters without the values that do not exist, and those values with their names. */
export function knownFilters(filters: Filters): { known: Filters; unknown: string[] } {
  const known = { ...filters }
  const unknown: string[] = []
  const keep = (name: 'health' | 'activity' | 'sort', isKnown: (value: string) => boolean): void => {
    const values = filters[name]?.split(',').map((value) => value.trim()).filter(Boolean) ?? []
    unknown.push(...values.filter((value) => !isKnown(value)).map((value) => `${name} ${value}`))
    const kept = values.filter(isKnown).join(',')
    if (kept) Object.assign(known, { [name]: kept })
    else delete known[name]
  }
  keep('health', (value) => HEALTH.some((one) => one === value))
  keep('activity', (value) => ACTIVITY.some((one) => one === value))
  keep('sort', (value) => ORDERS.includes(value.replace(/^-/, '')))
  return { known, unknown }
}

/** How a session ended, or how healthy it is. */
export const stateOf = ({ ended, outcome, health }: Pick<AgentRow, 'ended' | 'outcome' | 'health'>): string => (ended ? outcome || 'ended' : health || 'healthy')

/** Seconds between two calls of a worker after which it is idle. */
const BETWEEN_CALLS = 5

/** What a worker does, and when it tries again. One that has just made a call is not idle. */
export function activityOf({ activity, activity_kind, last_activity, limited_until }: Pick<AgentRow, 'activity' | 'activity_kind' | 'last_activity' | 'limited_until'>, now: number): string {
  if (activity_kind === 'idle' && now - last_activity < BETWEEN_CALLS) return 'working'
  return limited_until === null ? activity : `${activity} at ${timeOfDay(limited_until)}`
}
