import type { QueryClient } from '@tanstack/react-query'
import { useSyncExternalStore } from 'react'
import { data, GET } from './client'

/*
 * Pages read lists, and one event stream marks lists as stale. After an
 * interruption the browser sends the id of the last event that it received, so that none is missed; if the
 * log no longer has that event, the service says `reset` and everything is read again.
 */

/** First parts of the query keys that an event makes stale. */
type Topic = 'agents' | 'attention' | 'tickets' | 'status' | 'incidents' | 'providers' | 'acting' | 'loaded'

const TOPICS: Record<string, readonly Topic[]> = {
  execution_started: ['agents', 'status', 'attention'],
  execution_completed: ['agents', 'status', 'attention'],
  execution_failed: ['agents', 'status', 'attention'],
  execution_paused: ['agents', 'status', 'attention'],
  execution_resumed: ['agents', 'status', 'attention'],
  agent_renamed: ['agents', 'status', 'attention'],
  agent_terminated: ['agents', 'status', 'attention', 'tickets'],
  agent_heartbeat: [],
  client_input_requested: ['agents', 'attention'],
  client_input_received: ['agents', 'attention'],
  worker_waiting: ['agents', 'attention'],
  step_started: ['agents'],
  step_completed: ['agents'],
  llm_call_started: ['agents'],
  llm_call_completed: ['agents', 'providers'],
  tool_call_started: ['agents'],
  tool_call_completed: ['agents'],
  checkpoint_saved: ['agents'],
  node_loop_started: ['agents'],
  node_loop_completed: ['agents'],
  edge_traversed: ['agents'],
  goal_progress: ['agents'],
  finding_opened: ['agents', 'status', 'attention'],
  finding_cleared: ['agents', 'status', 'attention'],
  health_state_changed: ['agents', 'status', 'attention'],
  judge_checked: [],
  worker_escalation_ticket: ['tickets', 'status', 'attention', 'incidents'],
  queen_intervention_requested: ['tickets', 'status', 'attention', 'incidents'],
  ticket_triaged: ['tickets', 'status', 'attention', 'incidents'],
  ticket_acknowledged: ['tickets', 'attention'],
  ticket_unacknowledged: ['tickets', 'attention'],
  ticket_reescalated: ['tickets', 'attention'],
  ticket_resolved: ['tickets', 'status', 'attention', 'incidents'],
  incident_closed: ['attention', 'incidents'],
  operator_asked: ['tickets'],
  queen_answer_delta: [],
  queen_answered: ['tickets'],
  notification_delivered: ['tickets', 'status'],
  notification_failed: ['tickets', 'status'],
  receiver_notified: ['tickets'],
  agent_operated: ['agents', 'loaded', 'status'],
  nudge_sent: ['agents', 'acting', 'status'],
  escalation_triggered: ['attention', 'acting', 'status'],
  escalation_decided: ['attention', 'acting', 'status'],
  termination_requested: ['attention', 'acting', 'status'],
  termination_decided: ['attention', 'acting', 'status'],
  recovery_initiated: ['acting', 'status'],
  recovery_completed: ['acting', 'status'],
  recovery_failed: ['acting', 'status', 'attention'],
  circuit_breaker_state_changed: ['acting', 'status'],
  breaker_reported: ['acting', 'status'],
  intervention_recorded: ['acting', 'attention', 'agents', 'status'],
  emergency_stop_changed: ['acting', 'agents', 'attention', 'status', 'tickets'],
}

/** Minimum milliseconds between refetches: of data that changes all the time, and of data that people wait for. */
const REFETCH_INTERVALS = { busy: 1000, prompt: 250 } as const
const BUSY_KEYS: ReadonlySet<unknown> = new Set(['agent', 'agents', 'providers', 'session'])

/** Seconds without a connection after which it is shown as lost. */
const LOST_AFTER_SECONDS = 2

/** Seconds without an event after which the connection is dead. The service sends `alive` after 15 seconds of silence. */
const DEAD_AFTER_SECONDS = 40

/** Maximum sessions whose last heartbeat is remembered. */
const MAX_HEARTBEATS = 20_000

/** Seconds after which a hidden tab closes its connection. */
const CLOSE_HIDDEN_AFTER_SECONDS = 60

export interface Connection {
  state: 'connecting' | 'live' | 'lost'
  /** When the connection was lost, in Unix seconds. Clocks stop at this time. */
  lostAt: number | null
}

let connection: Connection = { state: 'connecting', lostAt: null }
const listeners = new Set<() => void>()
const eventListeners = new Set<(event: WatchedEvent) => void>()

function setConnection(next: Connection): void {
  connection = next
  for (const listener of listeners) listener()
}

/** The connection to the service. */
export function useConnection(): Connection {
  return useSyncExternalStore(subscribe, () => connection)
}

export const currentConnection = (): Connection => connection

export function subscribe(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** An event of the stream. */
export interface WatchedEvent {
  id: string
  type: string
  time: number
  agent_id: string
  session_id: string
  data: Record<string, unknown>
}

/** Call `listener` for each event of the stream. Return a function that unsubscribes. */
export function onEvent(listener: (event: WatchedEvent) => void): () => void {
  eventListeners.add(listener)
  return () => eventListeners.delete(listener)
}

/** Follow the event stream, and mark queries as stale. */
export function watch(queries: QueryClient): void {
  const stale = new Map<string, readonly unknown[]>()
  const timers: Partial<Record<keyof typeof REFETCH_INTERVALS, ReturnType<typeof setTimeout>>> = {}
  let lostTimer: ReturnType<typeof setTimeout> | undefined
  let lastId = ''

  function refresh(pace: keyof typeof REFETCH_INTERVALS): void {
    delete timers[pace]
    let hasRemaining = false
    for (const [id, key] of [...stale]) {
      if (BUSY_KEYS.has(key[0]) !== (pace === 'busy')) continue
      // A fetch in progress may miss the event. Restarting it each time would never end on a slow service.
      if (queries.isFetching({ queryKey: key })) {
        hasRemaining = true
        continue
      }
      stale.delete(id)
      void queries.invalidateQueries({ queryKey: key })
    }
    if (hasRemaining) timers[pace] = setTimeout(() => refresh(pace), REFETCH_INTERVALS[pace])
  }

  function mark(key: readonly unknown[]): void {
    stale.set(JSON.stringify(key), key)
    const pace = BUSY_KEYS.has(key[0]) ? 'busy' : 'prompt'
    timers[pace] ??= setTimeout(() => refresh(pace), REFETCH_INTERVALS[pace])
  }

  function receive(message: MessageEvent<string>): void {
    restartSilenceTimer()
    lastId = message.lastEventId
    for (const topic of TOPICS[message.type] ?? []) mark([topic])
    const event = JSON.parse(message.data) as WatchedEvent
    if (message.type !== 'agent_heartbeat' || isNewHeartbeat(event)) {
      if (event.agent_id) mark(['agent', event.agent_id])
      if (event.session_id) mark(['session', event.session_id])
    }
    for (const listener of eventListeners) listener(event)
  }

  // Most heartbeats repeat the previous one, so pages need not refetch.
  const lastHeartbeats = new Map<string, string>()

  function isNewHeartbeat({ agent_id, session_id, data }: WatchedEvent): boolean {
    const key = `${agent_id}\n${session_id}`
    const heartbeat = JSON.stringify(data)
    const previous = lastHeartbeats.get(key)
    if (lastHeartbeats.size > MAX_HEARTBEATS) lastHeartbeats.clear()
    lastHeartbeats.set(key, heartbeat)
    return previous !== heartbeat
  }

  let source: EventSource | undefined
  let silenceTimer: ReturnType<typeof setTimeout> | undefined

  /** Record that data arrived. A lost network may not close the connection, but then no data arrives. */
  function restartSilenceTimer(): void {
    clearTimeout(silenceTimer)
    silenceTimer = setTimeout(() => {
      markLost()
      // Requests in progress wait for the same network.
      void queries.cancelQueries()
      open()
    }, DEAD_AFTER_SECONDS * 1000)
  }

  function close(): void {
    clearTimeout(silenceTimer)
    source?.close()
  }

  function markLost(): void {
    const at = Date.now() / 1000
    lostTimer ??= setTimeout(() => setConnection({ state: 'lost', lostAt: at }), LOST_AFTER_SECONDS * 1000)
  }

  function open(): void {
    close()
    restartSilenceTimer()
    const types = Object.keys(TOPICS)
    const after = lastId && `&after=${encodeURIComponent(lastId)}`
    source = new EventSource(`/api/events?types=${types.join(',')}${after}`)
    for (const type of types) source.addEventListener(type, receive)
    source.addEventListener('alive', (message: MessageEvent<string>) => {
      lastId = message.lastEventId
      restartSilenceTimer()
    })
    source.addEventListener('reset', () => void queries.invalidateQueries())
    source.onopen = () => {
      restartSilenceTimer()
      clearTimeout(lostTimer)
      lostTimer = undefined
      setConnection({ state: 'live', lostAt: null })
      // Fetches before the stream opened may have missed an event, and a first fetch may have been cancelled.
      void queries.invalidateQueries({ predicate: (query) => query.state.fetchStatus !== 'idle' || query.state.status !== 'pending' || query.isActive() })
    }
    source.onerror = () => {
      markLost()
      // A browser does not reconnect after a response that is not a stream, such as a proxy's error.
      if (source?.readyState !== EventSource.CLOSED) return
      setTimeout(open, 3000)
      // It does not expose the status either. This request opens the sign-in page if a token is missing.
      void data(GET('/api/caller')).catch(() => undefined)
    }
  }

  addEventListener('offline', () => {
    close()
    markLost()
  })
  addEventListener('online', open)

  // A browser allows few connections to one service, and each tab uses one.
  let hiddenTimer: ReturnType<typeof setTimeout> | undefined
  document.addEventListener('visibilitychange', () => {
    clearTimeout(hiddenTimer)
    if (document.hidden) hiddenTimer = setTimeout(close, CLOSE_HIDDEN_AFTER_SECONDS * 1000)
    else if (source?.readyState === EventSource.CLOSED) open()
  })

  open()
}
