import './session/session.css'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { lazy, Suspense, useEffect, useState } from 'react'
import { data, GET, RequestError } from '../api/client'
import { attentionOfQuery } from '../api/queries'
import type { AgentHealth, AgentRow, AttentionList } from '../api/schema'
import { useNow } from '../clock'
import { ago, count, dateTime, duration, words } from '../format'
import { useTitle } from '../shell/title'
import { Button, Clamped, Empty, Loading, Panel, Pill, ReadError, sentence, toneOf } from '../ui/basics'
import { loadCode } from '../ui/load'
import { NeedsYou } from './attention'
import { describeActivity, sessionState } from './fleet-filters'
import { Actions } from './session/actions'
import { NextDetectors, OpenWork } from './session/open-work'
import { Side } from './session/side'
import { Timeline } from './session/timeline'

const Recorder = lazy(() => loadCode(() => import('./session/recorder')).then((module) => ({ default: module.Recorder })))

// Another view of the same session does not make a link the current page.
const EXACT = { exact: true, includeSearch: true }

export function SessionPage() {
  const { agentId } = useParams({ from: '/agents/$agentId' })
  const { session = '', view } = useSearch({ from: '/agents/$agentId' })
  const navigate = useNavigate()
  useTitle(agentId)
  const health = useQuery({
    queryKey: session ? ['session', session, 'health', agentId] : ['agent', agentId, 'health'],
    queryFn: () => data(GET('/api/agents/{agent_id}/health', { params: { path: { agent_id: agentId }, query: session ? { session_id: session } : {} } })),
    placeholderData: (before) => (before?.agent_id === agentId && (!session || before.session_id === session) ? before : undefined),
  })
  const worker = health.data
  const attention = useQuery({ ...attentionOfQuery(worker?.agent_id ?? '', worker?.session_id ?? ''), enabled: worker !== undefined })
  const [isShown, show] = useShown(worker && `${worker.agent_id}\n${worker.session_id}`, attention.data)
  // The URL contains the session, so that a link shows what its sender saw. A renamed agent has a new URL.
  const isElsewhere = worker && (worker.agent_id !== agentId || worker.session_id !== session)
  const [agentFound, sessionFound] = isElsewhere ? [worker.agent_id, worker.session_id] : ['', '']
  useEffect(() => {
    if (sessionFound) void navigate({ to: '/agents/$agentId', params: { agentId: agentFound }, search: (before) => ({ ...before, session: sessionFound }), replace: true, resetScroll: false })
  }, [agentFound, sessionFound, navigate])
  if (!worker) {
    if (!health.error) return <Panel title={agentId}><Loading rows={6} /></Panel>
    if (health.error instanceof RequestError && health.error.status === 404)
      return (
        <Empty isPage title={session ? 'Session not found' : 'Agent not found'}>
          <p className="wrap">{sentence(health.error.message)}</p>
          <Link to="/" className="link">
            Go to the fleet
          </Link>
        </Empty>
      )
    return (
      <Panel title={agentId}>
        <ReadError error={health.error} retry={() => void health.refetch()} />
      </Panel>
    )
  }
  return (
    <div className="session">
      {/* A placeholder has no read time. */}
      <Head worker={worker} readAt={health.isPlaceholderData ? Infinity : health.dataUpdatedAt / 1000}>
        {!isShown && attention.data && attention.data.total > 0 && (
          <Button small look="primary" onPress={show}>
            Needs you ({count(attention.data.total)})
          </Button>
        )}
      </Head>
      {isShown && attention.data && <NeedsYou list={attention.data} />}
      {attention.isPending ? <Loading rows={8} /> : view === 'recorder' ? (
        <Suspense fallback={<Panel title="Flight recorder"><Loading rows={6} /></Panel>}>
          <Recorder key={`${worker.agent_id}\n${worker.session_id}`} worker={worker} />
        </Suspense>
      ) : (
        <div className="session-columns">
          <div className="stack">
            <OpenWork worker={worker} />
            <NextDetectors worker={worker} />
            <Timeline key={`${worker.agent_id}\n${worker.session_id}`} worker={worker} />
          </div>
          <Side worker={worker} />
        </div>
      )}
    </div>
  )
}

/**
 * Return whether items that need a person are shown, and a function that shows them. New items would move the whole
 * page, so they are shown on request.
 */
function useShown(session: string | undefined, list: AttentionList | undefined): [isShown: boolean, show: () => void] {
  const [shown, setShown] = useState({ session: '', isShown: false })
  if (session && list && shown.session !== session) setShown({ session, isShown: list.total > 0 })
  return [shown.isShown && shown.session === session, () => setShown({ ...shown, isShown: true })]
}

/** `children` are between the view tabs and the session picker. */
function Head({ worker, readAt, children }: { worker: AgentHealth; readAt: number; children: ReactNode }) {
  const { agent_id: agentId, session_id: sessionId } = worker
  const { view } = useSearch({ from: '/agents/$agentId' })
  const now = useNow()
  const state = sessionState(worker)
  const to = { to: '/agents/$agentId', params: { agentId } } as const
  return (
    <>
      <div className="session-head">
        <div className="grow">
          <div className="row wraps">
            <h1 className="wrap">{agentId}</h1>
            <Pill tone={toneOf(state)}>{state}</Pill>
            {!worker.ended && worker.activity && <Pill tone="quiet">{words(describeActivity(worker, now))}</Pill>}
          </div>
          <p className="muted session-facts">
            {[worker.framework, worker.node_id && `node ${worker.node_id}`].filter(Boolean).map((fact) => (
              <span key={fact} className="wrap">
                {fact}
              </span>
            ))}
            <span className="number">
              {worker.ended ? 'ran for' : 'running for'} {duration(worker.metrics.uptime_seconds + (worker.ended ? 0 : Math.max(0, now - readAt)))}
            </span>
            <span className="number" title={dateTime(worker.last_activity)}>
              {worker.ended ? 'ended' : 'last activity'} {ago(worker.last_activity, now)}
            </span>
          </p>
        </div>
        <Actions worker={worker} />
      </div>
      {/* A running session always has it, so that nothing moves when its health changes. */}
      {(worker.reason || !worker.ended) && (
        <p className={`session-reason tone-${toneOf(state)}`}>
          <span>
            <Clamped text={worker.reason || 'No findings'} />
          </span>{' '}
          {!worker.ended && <span className="muted number">for {duration(now - worker.state_since)}</span>}
        </p>
      )}
      <div className="session-bar">
        <nav className="tabs" aria-label="Views of the session">
          <Link {...to} activeOptions={EXACT} search={{ session: sessionId }} aria-current={view === 'recorder' ? undefined : 'page'}>
            Timeline
          </Link>
          <Link {...to} activeOptions={EXACT} search={{ session: sessionId, view: 'recorder' }} aria-current={view === 'recorder' ? 'page' : undefined}>
            Flight recorder
          </Link>
        </nav>
        <span role="status">{children}</span>
        <SessionPicker worker={worker} />
      </div>
    </>
  )
}

/** Choose one of the agent's sessions. */
function SessionPicker({ worker }: { worker: AgentHealth }) {
  const navigate = useNavigate()
  const { view } = useSearch({ from: '/agents/$agentId' })
  const now = useNow()
  const agent = useQuery({
    queryKey: ['agents', 'of', worker.agent_id],
    queryFn: () => data(GET('/api/agents/{agent_id}', { params: { path: { agent_id: worker.agent_id } } })),
  })
  const sessions = [...(agent.data?.sessions ?? [])].sort((a, b) => Number(a.ended) - Number(b.ended) || b.last_activity - a.last_activity)
  const label = (row: AgentRow): string => `${row.session_id} · ${sessionState(row)} · ${ago(row.last_activity, now)}`
  const newer = worker.ended ? sessions.find((row) => !row.ended) : undefined
  return (
    <div className="session-picker">
      {newer && (
        <Link to="/agents/$agentId" params={{ agentId: worker.agent_id }} search={{ session: newer.session_id }} className="link">
          Open the running session
        </Link>
      )}
      <label>
      <span className="muted">Session{sessions.length > 1 && <span className="number"> (of {sessions.length})</span>}</span>
      <select
        className="input mono"
        value={worker.session_id}
        onChange={(event) => void navigate({ to: '/agents/$agentId', params: { agentId: worker.agent_id }, search: { session: event.target.value, ...(view ? { view } : {}) } })}
      >
        {!sessions.some((row) => row.session_id === worker.session_id) && <option value={worker.session_id}>{worker.session_id}</option>}
        {sessions.map((row) => (
          <option key={row.session_id} value={row.session_id}>
            {label(row)}
          </option>
        ))}
        </select>
      </label>
    </div>
  )
}
