import { expect, test } from 'vitest'
import { rankSessions } from './ranking'

test('names that begin with the text are first, and those that ended after others', () => {
  const rows = [
    { agent_id: 'archivist', ended: false },
    { agent_id: 'my-research', ended: false },
    { agent_id: 'researcher', ended: true },
    { agent_id: 'Researcher', ended: false },
  ]

  expect(rankSessions(rows, 'res').map((row) => row.agent_id)).toEqual(['Researcher', 'researcher', 'my-research', 'archivist'])
})
