import { queryOptions } from '@tanstack/react-query'
import { data, GET } from './client'

// All query keys are here, because `watch.ts` marks queries stale by the first part of their keys.

export const attentionQuery = queryOptions({
  queryKey: ['attention'],
  queryFn: () => data(GET('/api/attention')),
})

/** Items of one session that need a person. */
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

/** Whether an Alertmanager is configured; undefined until it is known. */
export const alertmanagerQuery = queryOptions({ ...statusQuery, select: (status) => status.outbox.peers.length > 0 })

/** Shown in place of notifications. */
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
