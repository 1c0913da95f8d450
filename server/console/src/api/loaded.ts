import { queryOptions } from '@tanstack/react-query'
import { data, GET } from './client'

/** A session of a loaded agent, with its runs. */
export const sessionQuery = (agentId: string, session: string) =>
  queryOptions({
    queryKey: ['agent', agentId, 'session', session],
    queryFn: () => data(GET('/api/agents/{agent_id}/sessions/{session_id}', { params: { path: { agent_id: agentId, session_id: session } } })),
    enabled: session !== '',
  })
