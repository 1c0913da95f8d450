import { expect, test } from 'vitest'
import { timeOfDay } from '../format'
import { activityOf, knownFilters, stateOf } from './fleet-filters'

test('a value that does not exist is left out and named', () => {
  expect(knownFilters({ health: 'stuck,odd', activity: 'resting', sort: '-cost', owner: 'ada' })).toEqual({
    known: { health: 'stuck', sort: '-cost', owner: 'ada' },
    unknown: ['health odd', 'activity resting'],
  })
})

test('a worker is idle a few seconds after its last call', () => {
  const idle = { activity: 'idle', activity_kind: 'idle', last_activity: 100, limited_until: null } as const

  expect([activityOf(idle, 101), activityOf(idle, 120)]).toEqual(['working', 'idle'])
})

test('a worker that its provider limits says when it tries again', () => {
  const limited = { activity: 'waiting to try again', activity_kind: 'waiting', last_activity: 100, limited_until: 160 } as const

  expect(activityOf(limited, 101)).toBe(`waiting to try again at ${timeOfDay(160)}`)
})

test('the state of an ended session is its outcome', () => {
  expect(stateOf({ ended: true, outcome: 'failed', health: 'healthy' })).toBe('failed')
  expect(stateOf({ ended: true, outcome: '', health: 'healthy' })).toBe('ended')
  expect(stateOf({ ended: false, outcome: '', health: 'stuck' })).toBe('stuck')
})
