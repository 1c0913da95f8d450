import type { AgentRow, operations } from '../api/schema'
import { timeOfDay } from '../format'

export const HEALTH = ['failing', 'stuck', 'degraded', 'healthy', 'ended'] as const
/** By default, the fleet shows running sessions. */
export const RUNNING = HEALTH.filter((name) => name !== 'ended').join(',')
export const ACTIVITY = ['working', 'waiting', 'paused', 'held', 'queued', 'idle'] as const
const ORDERS = ['attention', 'agent', 'activity', 'progress', 'tokens', 'cost']

/** Filters and order of the fleet, as in the URL. */
export interface Filters {
  search?: string
  health?: string
  activity?: string
  owner?: string
  repository?: string
  sort?: NonNullable<NonNullable<operations['list_agents']['parameters']['query']>['sort']>
}

/** Split filters into the valid ones, and the invalid values with their names. */
export function splitFilters(filters: Filters): { valid: Filters; invalid: string[] } {
  const valid = { ...filters }
  const invalid: string[] = []
  const keep = (name: 'health' | 'activity' | 'sort', isValid: (value: string) => boolean): void => {
    const values = filters[name]?.split(',').map((value) => value.trim()).filter(Boolean) ?? []
    invalid.push(...values.filter((value) => !isValid(value)).map((value) => `${name} ${value}`))
    const kept = values.filter(isValid).join(',')
    if (kept) Object.assign(valid, { [name]: kept })
    else delete valid[name]
  }
  keep('health', (value) => HEALTH.some((one) => one === value))
  keep('activity', (value) => ACTIVITY.some((one) => one === value))
  keep('sort', (value) => ORDERS.includes(value.replace(/^-/, '')))
  return { valid, invalid }
}

/** The outcome of an ended session, or the health of a running one. */
export const sessionState = ({ ended, outcome, health }: Pick<AgentRow, 'ended' | 'outcome' | 'health'>): string => (ended ? outcome || 'ended' : health || 'healthy')

/** Seconds after a call before a worker is shown as idle. */
const IDLE_AFTER_SECONDS = 5

/** The activity of a worker, with the time of its next attempt. A worker that has just made a call is not idle. */
export function describeActivity({ activity, activity_kind, last_activity, limited_until }: Pick<AgentRow, 'activity' | 'activity_kind' | 'last_activity' | 'limited_until'>, now: number): string {
  if (activity_kind === 'idle' && now - last_activity < IDLE_AFTER_SECONDS) return 'working'
  return limited_until === null ? activity : `${activity} at ${timeOfDay(limited_until)}`
}
