import { useInfiniteQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useEffect, useState } from 'react'
import { data, GET } from '../../api/client'
import type { AuditedEvent, EventType } from '../../api/schema'
import { onEvent } from '../../api/watch'
import { counted, dateTime, timeOfDay, words } from '../../format'
import { Ago, Button, Empty, Loading, Panel, ReadError } from '../../ui/basics'
import { Choice, SearchInput } from '../../ui/filters'
import { useFilters } from './filters'

/** Event types by topic. */
const GROUPS: Record<string, readonly EventType[]> = {
  tickets: ['worker_escalation_ticket', 'queen_intervention_requested', 'ticket_triaged', 'ticket_acknowledged', 'ticket_unacknowledged', 'ticket_reescalated', 'ticket_resolved', 'incident_closed'],
  'queen and chat': ['operator_asked', 'queen_answered'],
  notifications: ['notification_delivered', 'notification_failed'],
  actions: ['nudge_sent', 'escalation_triggered', 'escalation_decided', 'termination_requested', 'termination_decided', 'agent_terminated', 'intervention_recorded', 'emergency_stop_changed'],
  recoveries: ['recovery_initiated', 'recovery_completed', 'recovery_failed'],
  breakers: ['circuit_breaker_state_changed'],
  health: ['finding_opened', 'finding_cleared', 'health_state_changed'],
  'judge checks': ['judge_checked'],
  runs: ['execution_started', 'execution_completed', 'execution_failed', 'execution_paused', 'execution_resumed', 'agent_renamed', 'agent_operated'],
  tokens: ['tokens_changed'],
}
/** Without a filter, steps, calls and judge checks are omitted, because they are nearly all events. */
const NOTABLE = Object.values(GROUPS).flat().filter((type) => type !== 'judge_checked')
const TYPES: readonly (readonly [string, string])[] = [['all', 'all, with each step, call and check'], ...Object.keys(GROUPS).map((name) => [name, name] as const), ...NOTABLE.map((type) => [type, `· ${words(type)}`] as const)]

/** The event log, newest first. */
export function Audit() {
  const [{ agent = '', type = '' }, change] = useFilters()
  const types = type === 'all' ? [] : type ? (GROUPS[type] ?? [type as EventType]) : NOTABLE
  const result = useInfiniteQuery({
    queryKey: ['audit', agent, type],
    queryFn: ({ pageParam }) => data(GET('/api/audit', { params: { query: { limit: 100, ...(types.length ? { type: [...types] } : {}), ...(agent ? { agent_id: agent } : {}), ...(pageParam ? { cursor: pageParam } : {}) } } })),
    initialPageParam: '',
    getNextPageParam: (last) => last.next ?? undefined,
    placeholderData: (before) => before,
  })
  const rows = result.data?.pages.flatMap((page) => page.events)
  const newer = useNewer(agent, types, result.dataUpdatedAt)
  return (
    <Panel
      title="Events"
      aside={
        newer > 0 && (
          <Button small onPress={() => void result.refetch()}>
            Show {newer > 999 ? '999+' : newer} newer
          </Button>
        )
      }
    >
      <div className="fleet-tools" role="group" aria-label="Filters">
        <SearchInput label="Agent" value={agent} onChange={(next) => change({ agent: next.trim() })} suggestions={[...new Set(rows?.map((row) => row.agent_id).filter(Boolean))]} />
        <Choice label="Type" any="Type: all but steps, calls and checks" value={type} options={TYPES} onChange={(next) => change({ type: next })} />
      </div>
      {result.error && !rows ? (
        <ReadError error={result.error} retry={() => void result.refetch()} />
      ) : !rows ? (
        <Loading rows={8} />
      ) : rows.length === 0 ? (
        <Empty title={agent || type ? 'No event matches these filters' : 'The log is empty'} />
      ) : (
        <div>
          {rows.map((row) => (
            <Row key={row.seq} row={row} />
          ))}
        </div>
      )}
      <p className="body row wraps spread">
        {result.hasNextPage ? (
          <Button small onPress={() => void result.fetchNextPage()} isDisabled={result.isFetchingNextPage}>
            Show older
          </Button>
        ) : (
          <span />
        )}
        <span className="muted">
          Each event contains the hash of the previous event; <code>queenright audit verify</code> checks the chain.
        </span>
      </p>
    </Panel>
  )
}

/** The number of events that match the filters and arrived after the list was read. */
function useNewer(agent: string, types: readonly EventType[], since: number): number {
  const [newer, setNewer] = useState(0)
  const key = types.join()
  useEffect(() => {
    setNewer(0)
    let count = 0
    let timer: ReturnType<typeof setTimeout> | undefined
    const wantedTypes = key ? new Set(key.split(',')) : null
    const end = onEvent((event) => {
      if ((agent && event.agent_id !== agent) || (wantedTypes && !wantedTypes.has(event.type))) return
      count++
      timer ??= setTimeout(() => {
        timer = undefined
        setNewer(count)
      }, 500)
    })
    return () => {
      end()
      clearTimeout(timer)
    }
  }, [agent, key, since])
  return newer
}

function Row({ row }: { row: AuditedEvent }) {
  const [open, setOpen] = useState(false)
  const reason = row.type.startsWith('finding_') ? [row.data.kind, row.data.evidence].filter((value) => typeof value === 'string').map((value, index) => (index ? value : words(value as string))).join(': ') : ['text', 'reason', 'message', 'outcome', 'severity', 'state', 'tool', 'kind'].map((name) => row.data[name]).find((value) => typeof value === 'string' && value)
  return (
    <details className="audit-row" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <time className="muted number" style={{ textAlign: 'left' }} dateTime={new Date(row.time * 1000).toISOString()} title={dateTime(row.time)}>
          {timeOfDay(row.time)}
        </time>
        <strong className="wrap">{words(row.type)}</strong>
        <span className="clip" title={reason === undefined ? row.agent_id : `${row.agent_id} ${String(reason)}`}>
          {(row.agent_id || reason !== undefined) && (
            <>
              {row.agent_id} {reason !== undefined && <span className="muted">{String(reason)}</span>}
            </>
          )}
        </span>
        <span className="muted number">
          <Ago at={row.time} />
        </span>
      </summary>
      {open && (
        <div className="opened">
          <dl className="facts">
            <dt>Number</dt>
            <dd className="number">
              {row.seq}
              {row.archived && ', archived'}
            </dd>
            <dt>Time</dt>
            <dd>{dateTime(row.time)}</dd>
            {row.agent_id && (
              <>
                <dt>Agent</dt>
                <dd>
                  <Link className="link" to="/agents/$agentId" params={{ agentId: row.agent_id }} search={row.session_id ? { session: row.session_id } : {}}>
                    {row.agent_id}
                  </Link>
                </dd>
              </>
            )}
            {(['session_id', 'incarnation_id', 'graph_id', 'node_id', 'execution_id', 'trace_id', 'id', 'hash'] as const).map(
              (name) =>
                row[name] && (
                  <div key={name} style={{ display: 'contents' }}>
                    <dt>{words(name.replace(/_id$/, '').replace(/^id$/, 'event'))}</dt>
                    <dd className="mono">{row[name]}</dd>
                  </div>
                ),
            )}
          </dl>
          <pre tabIndex={0} aria-label={`Data of event ${row.seq}, ${counted(Object.keys(row.data).length, 'field')}`}>
            {JSON.stringify(row.data, null, 2)}
          </pre>
        </div>
      )}
    </details>
  )
}
