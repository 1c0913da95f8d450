import { useQuery } from '@tanstack/react-query'
import type { UseQueryResult } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { lazy, Suspense } from 'react'
import { data, GET } from '../../api/client'
import { stepsQuery } from '../../api/steps'
import type { AgentHealth, Finding, Intervention, Ticket } from '../../api/schema'
import { actorName, isAccepted } from '../../api/worker-actions'
import { useNow } from '../../clock'
import { count, counted, duration, money, timeOfDay, words } from '../../format'
import { Ago, Loading, Panel, Pill, ReadError, Shape, toneOf } from '../../ui/basics'
import { loadCode } from '../../ui/load'
import { isOpen, useTickets } from './actions'

const Chart = lazy(() => loadCode(() => import('./chart')).then((module) => ({ default: module.Chart })))

const QueenChat = lazy(() => loadCode(() => import('../queen')).then((module) => ({ default: module.QueenChat })))

export function Side({ worker }: { worker: AgentHealth }) {
  const result = useTickets(worker)
  const interventions = useInterventions(worker)
  const log = useQuery(stepsQuery(worker.agent_id, worker.session_id))
  // Panels whose height changes while they load move those below them. On a narrow screen, the timeline moves all of them.
  if (result.isPending || interventions.isPending || log.isPending)
    return (
      <div className="visually-hidden">
        <Loading />
      </div>
    )
  const tickets = result.data ?? []
  const about = tickets.find(isOpen) ?? tickets[0]
  return (
    <aside className="stack session-side" aria-label="About the session">
      <Findings worker={worker} />
      <Suspense fallback={<Panel title="Ask the queen"><div className="chat"><Loading /></div></Panel>}>
        {about ? <QueenChat key={about.ticket_id} about={{ ticketId: about.ticket_id }} /> : result.data && <QueenChat key={worker.session_id} about={{ agentId: worker.agent_id, sessionId: worker.session_id }} />}
      </Suspense>
      <Usage worker={worker} ticket={about} />
      <Progress worker={worker} />
      <Interventions worker={worker} />
      <Tickets list={result} tickets={tickets} />
      <Signals worker={worker} />
    </aside>
  )
}

function Findings({ worker }: { worker: AgentHealth }) {
  const all = [...worker.findings, ...worker.shadow_findings]
  const steps = useQuery(stepsQuery(worker.agent_id, worker.session_id)).data?.steps ?? []
  const findStep = (finding: Finding): string | undefined => steps.findLast((step) => step.kind === 'finding' && step.name === finding.kind)?.step_id
  return (
    <Panel title="Findings" aside={all.length > 0 && <span className="muted number">{all.length}</span>}>
      {all.length ? (
        <ul className="side-list">
          {all.map((finding) => (
            <li key={`${finding.kind}${finding.shadow}`}>
              <div className="row wraps">
                <Pill tone={toneOf(finding.severity)}>{finding.severity}</Pill>
                <strong>{words(finding.kind)}</strong>
                {finding.shadow && (
                  <span className="muted" title="A detector in shadow mode: it opens no ticket.">
                    shadow
                  </span>
                )}
                <span className="side-when muted">
                  since <Ago at={finding.since} />
                </span>
              </div>
              <p className="wrap">{finding.evidence}</p>
              <Link to="/agents/$agentId" params={{ agentId: worker.agent_id }} search={{ session: worker.session_id, view: 'recorder', ...(findStep(finding) ? { at: findStep(finding)! } : {}) }} className="link muted">
                Detector values
              </Link>
            </li>
          ))}
        </ul>
      ) : (
        <p className="body muted">{worker.ended ? 'No finding was open at the end.' : 'No detector has found anything.'}</p>
      )}
    </Panel>
  )
}

function Usage({ worker, ticket }: { worker: AgentHealth; ticket: Ticket | undefined }) {
  const log = useQuery(stepsQuery(worker.agent_id, worker.session_id)).data
  const turns = (log?.steps ?? []).filter((step) => step.kind === 'turn' && step.tokens_in + step.tokens_out > 0)
  const since = ticket?.trouble_since ?? ticket?.finding_since
  return (
    <Panel title="Usage">
      <dl className="numbers">
        <div>
          <dt>Tokens</dt>
          <dd>{count(worker.tokens)}</dd>
        </div>
        <div>
          <dt>Cost</dt>
          <dd title={worker.unpriced_tokens ? `${count(worker.unpriced_tokens)} tokens have no price` : undefined}>{money(worker.cost_usd)}</dd>
        </div>
        <div>
          <dt>Tool calls</dt>
          <dd>{count(worker.tool_calls)}</dd>
        </div>
        <div>
          <dt>Errors</dt>
          <dd className={worker.errors ? 'tone-failing' : ''}>{count(worker.errors)}</dd>
        </div>
      </dl>
      {worker.unpriced_tokens > 0 && <p className="body muted">{worker.cost_usd === null ? 'The price of its model is not known.' : `${count(worker.unpriced_tokens)} tokens have no price and are not in the cost.`}</p>}
      {ticket && (ticket.spent_tokens > 0 || ticket.spent_usd !== null) && (
        <p className="since-onset">
          <span>
            Since the onset{since ? ` at ${timeOfDay(since)}` : ''}
            {ticket.closed_at ? `, until ${timeOfDay(ticket.closed_at)}` : ''}
          </span>
          <strong className="number">
            {ticket.spent_usd === null ? '' : `${money(ticket.spent_usd)}, `}
            {counted(ticket.spent_tokens, 'token')}
          </strong>
        </p>
      )}
      {turns.length > 1 && (
        <Suspense fallback={<div className="chart-frame" />}>
          <Chart turns={turns} onset={ticket ? (since ?? null) : null} />
        </Suspense>
      )}
    </Panel>
  )
}

function Progress({ worker }: { worker: AgentHealth }) {
  const last = worker.verdicts.slice(-24)
  return (
    <Panel title="Progress" aside={<span className="muted number" title="Steps that ended with a verdict or an error. The timeline also lists turns, calls and events.">{counted(worker.steps, 'step')} ended</span>}>
      <div className="body stack">
        <span className="bars wide-bars" role="img" aria-label={last.length ? `Last verdicts: ${last.map((verdict) => words(verdict).toLowerCase()).join(', ')}` : 'No verdicts'}>
          {last.map((verdict, index) => (
            <i key={index} className={verdict.toLowerCase()} title={verdict} />
          ))}
        </span>
        <dl className="facts">
          <dt>Last progress</dt>
          <dd>
            <Ago at={worker.last_progress} />
          </dd>
          <dt>Bad steps</dt>
          <dd className="number">{worker.bad_steps} since the last accepted one</dd>
          <dt>Checkpoint</dt>
          <dd>
            <Ago at={worker.last_checkpoint} />
          </dd>
          <dt>Heartbeat</dt>
          <dd>
            <Ago at={worker.last_heartbeat} />
          </dd>
        </dl>
      </div>
    </Panel>
  )
}

const OUTCOMES: Record<string, string> = { done: 'healthy', started: 'quiet', queued: 'quiet', refused: 'failing', failed: 'failing', unreachable: 'degraded', unconfirmed: 'degraded', expired: 'degraded' }

const useInterventions = (worker: AgentHealth) =>
  useQuery({
    queryKey: ['acting', 'of', worker.agent_id],
    queryFn: () => data(GET('/api/interventions', { params: { query: { agent_id: worker.agent_id, limit: 50 } } })),
    select: (page) => page.interventions.filter((intervention) => intervention.session_id === worker.session_id),
  })

function Interventions({ worker }: { worker: AgentHealth }) {
  const now = useNow()
  const result = useInterventions(worker)
  const list = result.data
  const { ladder } = worker
  return (
    <Panel title="Interventions" aside={list && list.length > 0 && <span className="muted number">{list.length}</span>}>
      {ladder && (
        <p className="ladder">
          <strong>{ladderName(ladder.level, list ?? [])}</strong>{worker.state !== 'healthy' && <span className="muted">, in trouble for {duration(now - ladder.trouble_since)}</span>}
          {ladder.until !== null && ladder.until > now && <span className="muted number">, next in {duration(ladder.until - now)}</span>}
          {ladder.reason && <span className="side-note wrap">{ladder.reason}</span>}
        </p>
      )}
      {list?.length ? (
        <ul className="side-list">
          {list.map((intervention) => (
            <InterventionItem key={intervention.intervention_id} intervention={intervention} />
          ))}
        </ul>
      ) : (
        (!list || !ladder) && <EmptyList list={result} />
      )}
    </Panel>
  )
}

/** The current level of the ladder. An undelivered nudge does not count. */
function ladderName(level: string, list: readonly Intervention[]): string {
  const nudge = level === 'nudged' && list.find((intervention) => intervention.kind === 'nudge' && intervention.by === 'ladder')
  return nudge && !isAccepted(nudge.outcome) ? 'could not be nudged' : words(level)
}

function InterventionItem({ intervention }: { intervention: Intervention }) {
  return (
    <li>
      <div className="row wraps">
        <Shape tone={toneOf(OUTCOMES[intervention.outcome] ?? intervention.outcome)} />
        <strong>{words(intervention.kind)}</strong>
        <span>{words(intervention.outcome)}</span>
        <span className="muted">{actorName(intervention.by)}</span>
        <span className="side-when muted">
          <Ago at={intervention.created_at} />
        </span>
      </div>
      {intervention.detail && <p className="side-note muted wrap">{intervention.detail}</p>}
      {(intervention.message || intervention.reason) && (
        <details>
          <summary className="muted">{intervention.message ? 'Message' : 'Reason'}</summary>
          <p className="wrap message">{intervention.message || intervention.reason}</p>
        </details>
      )}
    </li>
  )
}

/** Text of an empty list. Nothing is known before it is read. */
function EmptyList({ list }: { list: UseQueryResult }) {
  if (list.data) return <p className="body muted">None.</p>
  return list.error ? <ReadError error={list.error} retry={() => void list.refetch()} /> : <Loading rows={1} />
}

function Tickets({ list, tickets }: { list: UseQueryResult; tickets: readonly Ticket[] }) {
  return (
    <Panel title="Tickets" aside={tickets.length > 0 && <span className="muted number">{tickets.length}</span>}>
      {tickets.length ? (
        <ul className="side-list">
          {tickets.map((ticket) => (
            <li key={ticket.ticket_id}>
              <div className="row wraps">
                <Pill tone={isOpen(ticket) ? toneOf(ticket.severity) : 'quiet'}>{isOpen(ticket) ? ticket.severity : words(ticket.status)}</Pill>
                {ticket.silenced && <span className="muted">silenced until {timeOfDay(ticket.silenced.until)}</span>}
                {ticket.acknowledged_at !== null && isOpen(ticket) && <span className="muted">acknowledged{ticket.acknowledged_by ? ` by ${ticket.acknowledged_by}` : ''}</span>}
                <span className="side-when muted">
                  <Ago at={ticket.first_seen} />
                </span>
              </div>
              <Link to="/tickets/$ticketId" params={{ ticketId: ticket.ticket_id }} className="link wrap">
                {ticket.cause}
              </Link>
            </li>
          ))}
        </ul>
      ) : (
        <EmptyList list={list} />
      )}
    </Panel>
  )
}

const ORDER: Record<string, number> = { bad: 0, warning: 1, ok: 2, unknown: 3 }

function Signals({ worker }: { worker: AgentHealth }) {
  const signals = [...worker.signals].sort((a, b) => (ORDER[a.verdict] ?? 4) - (ORDER[b.verdict] ?? 4))
  const reported = signals.filter((signal) => signal.verdict !== 'unknown')
  const missing = signals.filter((signal) => signal.verdict === 'unknown')
  return (
    <Panel title="Health signals">
      <ul className="side-list tight">
        {reported.map((signal) => (
          <li key={signal.name} className="signal">
            <Shape tone={toneOf(signal.verdict)} />
            <span>
              {words(signal.name)} <span className="visually-hidden">{signal.verdict}</span>
            </span>
            <span className="muted wrap">{signal.evidence}</span>
          </li>
        ))}
      </ul>
      {missing.length > 0 && <p className="body muted">Not reported: {missing.map((signal) => words(signal.name)).join(', ')}.</p>}
      {worker.circuit_breakers.filter((breaker) => breaker.state !== 'closed').map((breaker) => (
        <p key={breaker.name} className="body">
          <Link to="/operate/$section" params={{ section: 'breakers' }} className="link wrap">
            {breaker.name}
          </Link>{' '}
          is {words(breaker.state)}: {breaker.reason || `${breaker.failures} of ${breaker.threshold} failures`}
        </p>
      ))}
    </Panel>
  )
}

