import { expect, test } from 'vitest'
import { timeOfDay } from '../format'
import { describeActivity, splitFilters, sessionState } from './fleet-filters'

test('invalid values are removed and listed', () => {
  expect(splitFilters({ health: 'stuck,odd', activity: 'resting', sort: '-cost', owner: 'ada' })).toEqual({
    valid: { health: 'stuck', sort: '-cost', owner: 'ada' },
    invalid: ['health odd', 'activity resting'],
  })
})

test('worker becomes idle a few seconds after its last call', () => {
  const idle = { activity: 'idle', activity_kind: 'idle', last_activity: 100, limited_until: null } as const

  expect([describeActivity(idle, 101), describeActivity(idle, 120)]).toEqual(['working', 'idle'])
})

test('rate-limited worker shows the time of its next attempt', () => {
  const limited = { activity: 'waiting to try again', activity_kind: 'waiting', last_activity: 100, limited_until: 160 } as const

  expect(describeActivity(limited, 101)).toBe(`waiting to try again at ${timeOfDay(160)}`)
})

test('state of an ended session is its outcome', () => {
  expect(sessionState({ ended: true, outcome: 'failed', health: 'healthy' })).toBe('failed')
  expect(sessionState({ ended: true, outcome: '', health: 'healthy' })).toBe('ended')
  expect(sessionState({ ended: false, outcome: '', health: 'stuck' })).toBe('stuck')
})
