import { expect, test } from 'vitest'
import type { StatusLadder } from '../api/schema'
import { groupByAction } from './doing-groups'

const ladder = (agent_id: string, what: string, acted_at: number | null): StatusLadder => ({ agent_id, what, acted_at }) as StatusLadder

test('workers about which the same is done are one line, with the time of the last', () => {
  const groups = groupByAction([ladder('a', 'could not be nudged', 10), ladder('b', 'nudge 1 sent', null), ladder('c', 'could not be nudged', 30)])

  expect(groups.map(({ what, workers, at }) => [what, workers.map((one) => one.agent_id), at])).toEqual([
    ['could not be nudged', ['a', 'c'], 30],
    ['nudge 1 sent', ['b'], null],
  ])
})
