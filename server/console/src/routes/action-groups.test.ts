import { expect, test } from 'vitest'
import type { StatusLadder } from '../api/schema'
import { timeOfDay } from '../format'
import { groupByAction, listLimits } from './action-groups'

const ladder = (agent_id: string, what: string, acted_at: number | null): StatusLadder => ({ agent_id, what, acted_at }) as StatusLadder

test('workers with the same action are one group, with the time of the last action', () => {
  const groups = groupByAction([ladder('a', 'could not be nudged', 10), ladder('b', 'nudge 1 sent', null), ladder('c', 'could not be nudged', 30)])

  expect(groups.map(({ what, workers, at }) => [what, workers.map((worker) => worker.agent_id), at])).toEqual([
    ['could not be nudged', ['a', 'c'], 30],
    ['nudge 1 sent', ['b'], null],
  ])
})

test('storm, exhausted budget and notices are listed as limits', () => {
  const storm = { id: 'storm-1', workers: 7, since: 100 }
  const budget = { most: 10, used: 10, free_at: 160 }

  expect(listLimits({ storm, budget, notices: ['Rules apply.'] }, 130)).toEqual([
    `A storm since ${timeOfDay(100)}: 7 workers got worse at the same time.`,
    'Limit of 10 interventions per minute reached; the next in 30\u00a0s.',
    'Rules apply.',
  ])
  expect(listLimits({ storm: { id: '', workers: 0, since: null }, budget, notices: [] }, 160)).toEqual([])
})

test('a budget that is not spent is no limit, even if the clock of the browser is behind', () => {
  const budget = { most: 10, used: 0, free_at: 160 }

  expect(listLimits({ storm: { id: '', workers: 0, since: null }, budget, notices: [] }, 159.5)).toEqual([])
})
