import { queryOptions } from '@tanstack/react-query'
import { data, GET } from './client'

// One place for keys: `watch.ts` marks them stale by their first part.

export const attentionQuery = queryOptions({
  queryKey: ['attention'],
  queryFn: () => data(GET('/api/attention')),
})

/** What needs a person in one session. */
export const attentionOfQuery = (agentId: string, sessionId: string) =>
  queryOptions({
    queryKey: ['attention', agentId, sessionId],
    queryFn: () => data(GET('/api/attention', { params: { query: { agent_id: agentId, session_id: sessionId } } })),
  })

export const statusQuery = queryOptions({
  queryKey: ['status'],
  queryFn: () => data(GET('/api/status')),
})

/** Agents that are loaded in the service. */
export const loadedQuery = queryOptions({
  queryKey: ['loaded'],
  queryFn: () => data(GET('/api/agents', { params: { query: { limit: 1 } } })),
})

/** Whether people are notified; undefined before it is known. */
export const alertmanagerQuery = queryOptions({ ...statusQuery, select: (status) => status.outbox.peers.length > 0 })

/** What is said where notifications would be. */
export const NO_ALERTMANAGER = 'No Alertmanager is configured, so nobody is notified. Set alerting.alertmanager_urls.'

export const callerQuery = queryOptions({
  queryKey: ['caller'],
  queryFn: () => data(GET('/api/caller')),
  staleTime: Infinity,
})

export const providersQuery = queryOptions({
  queryKey: ['providers'],
  queryFn: () => data(GET('/api/providers')),
})

export const incidentsQuery = queryOptions({
  queryKey: ['incidents'],
  queryFn: () => data(GET('/api/incidents')),
})
