import { expect, test } from 'vitest'
import { rankSessions } from './ranking'

test('prefix matches are first; ended sessions follow running ones', () => {
  const rows = [
    { agent_id: 'archivist', ended: false },
    { agent_id: 'my-research', ended: false },
    { agent_id: 'researcher', ended: true },
    { agent_id: 'Researcher', ended: false },
  ]

  expect(rankSessions(rows, 'res').map((row) => row.agent_id)).toEqual(['Researcher', 'researcher', 'my-research', 'archivist'])
})
