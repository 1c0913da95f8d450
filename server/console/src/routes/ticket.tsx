import './tickets.css'
import { useQuery } from '@tanstack/react-query'
import { Link, useParams } from '@tanstack/react-router'
import { useState } from 'react'
import { stopWorker } from '../api/acts'
import { data, DELETE, GET, POST } from '../api/client'
import { callerQuery } from '../api/queries'
import type { Ticket, TimelineEntry } from '../api/schema'
import { count, counted, dateTime, duration, money, timeOfDay, words } from '../format'
import { useNow } from '../clock'
import { by } from '../shell/name'
import { say, useAct } from '../ui/act'
import { Ago, Button, Loading, Panel, Pill, ReadError, toneOf } from '../ui/basics'
import { Ask } from '../ui/dialog'
import { QueenChat } from './queen'
import { distinct } from './sentences'

/** One ticket: what it says, what was done, who was notified, and the queen beside it. */
export function TicketPage() {
  const { ticketId } = useParams({ from: '/tickets/$ticketId' })
  const found = useQuery({
    queryKey: ['tickets', 'one', ticketId],
    queryFn: () => data(GET('/api/tickets/{ticket_id}', { params: { path: { ticket_id: ticketId } } })),
  })
  if (found.error && !found.data) return <ReadError error={found.error} retry={() => void found.refetch()} />
  if (!found.data) return <Loading rows={8} />
  const ticket = found.data
  const isOpen = !ticket.closed_at
  return (
    <>
      <div className="page-head">
        <h1 className="wrap">
          <Link to="/agents/$agentId" params={{ agentId: ticket.worker_agent_id }} search={{ session: ticket.worker_session_id }}>
            {ticket.worker_agent_id}
          </Link>
          : {words(ticket.words_kind ?? ticket.kind)}
        </h1>
        <Pill tone={isOpen ? toneOf(ticket.severity) : 'quiet'}>{ticket.severity}</Pill>
        <Pill tone={isOpen ? 'queen' : 'healthy'}>{words(ticket.status)}</Pill>
        {ticket.incident_id && (
          <Link to="/incidents" className="link">
            part of an incident
          </Link>
        )}
      </div>
      <div className="ticket-page">
        <div className="stack">
          {ticket.acknowledged_by && isOpen && (
            <p className="notice">
              Acknowledged by <strong>{ticket.acknowledged_by}</strong> <Ago at={ticket.acknowledged_at} />
              {ticket.acknowledged_note && <>: {ticket.acknowledged_note}</>}
            </p>
          )}
          {ticket.silenced && (
            <p className="notice">
              Silenced{ticket.silenced.by && <> by {ticket.silenced.by}</>} until {dateTime(ticket.silenced.until)}: no notification is sent. {ticket.silenced.comment}
            </p>
          )}
          {!isOpen && (
            <p className="notice">
              Closed <Ago at={ticket.closed_at} />: {ticket.closed_reason || words(ticket.status)}
            </p>
          )}
          <Words ticket={ticket} />
          <Timeline ticketId={ticketId} />
        </div>
        <div className="stack">
          <Actions ticket={ticket} />
          <Facts ticket={ticket} />
          <Notified ticket={ticket} />
          <QueenChat ticketId={ticketId} />
        </div>
      </div>
    </>
  )
}

function Words({ ticket }: { ticket: Ticket }) {
  const [lead, ...parts] = distinct([
    ['', ticket.analysis || ticket.cause],
    ['Cause', ticket.cause],
    ['Reason', ticket.judge_reasoning],
    ['Suggested', ticket.closed_at ? '' : ticket.suggested_action],
    ['Evidence', ticket.evidence_snippet],
  ])
  return (
    <Panel title="What happened">
      <div className="body stack">
        {lead && <p className="lead">{lead[1]}</p>}
        {parts.map(([label, text]) => (
          <div className="part" key={label}>
            <span>{label}</span>
            {label === 'Evidence' ? <pre>{text}</pre> : text}
          </div>
        ))}
        <p className="row wraps">
          <a className="link" href="/runbooks/QueenrightIntervention">
            Runbook
          </a>
          <Link className="link" to="/agents/$agentId" params={{ agentId: ticket.worker_agent_id }} search={{ session: ticket.worker_session_id, view: 'recorder' }}>
            Flight recorder
          </Link>
        </p>
      </div>
    </Panel>
  )
}

type Asking = 'silence' | 'resolve' | 'dismiss' | 'stop' | null

function Actions({ ticket }: { ticket: Ticket }) {
  const mayAct = useQuery(callerQuery).data?.may_act
  const [asking, setAsking] = useState<Asking>(null)
  const path = { params: { path: { ticket_id: ticket.ticket_id } } }
  const acknowledge = useAct(async () => {
    await data(POST('/api/tickets/{ticket_id}/acknowledge', { ...path, body: { via: 'api', ...by() } }))
    return 'Acknowledged.'
  })
  const unacknowledge = useAct(async () => {
    await data(POST('/api/tickets/{ticket_id}/unacknowledge', { ...path, body: { via: 'api', ...by() } }))
    return 'The acknowledgement is withdrawn.'
  })
  const expire = useAct(async (silenceId: string) => {
    await data(DELETE('/api/silences/{silence_id}', { params: { path: { silence_id: silenceId } } }))
    return 'The silence has ended.'
  })
  if (mayAct === undefined || ticket.closed_at) return null
  if (!mayAct) return <p className="muted">You may view only.</p>
  const close = (): void => setAsking(null)
  return (
    <Panel title="Actions">
      <div className="body row wraps">
        {ticket.status === 'acknowledged' ? (
          <Button onPress={() => unacknowledge.mutate()} isDisabled={unacknowledge.isPending}>
            Withdraw acknowledgement
          </Button>
        ) : (
          <Button look="primary" onPress={() => acknowledge.mutate()} isDisabled={acknowledge.isPending}>
            Acknowledge
          </Button>
        )}
        {ticket.silenced ? (
          <Button onPress={() => ticket.silenced && expire.mutate(ticket.silenced.silence_id)}>End silence</Button>
        ) : (
          ticket.notified_severity && <Button onPress={() => setAsking('silence')}>Silence…</Button>
        )}
        <Button onPress={() => setAsking('resolve')}>Resolve…</Button>
        <Button onPress={() => setAsking('dismiss')}>Dismiss…</Button>
        <Button look="danger" onPress={() => setAsking('stop')}>
          Stop the worker…
        </Button>
      </div>
      {asking === 'silence' && (
        <Ask
          title="Silence this ticket"
          lead="Alertmanager sends no notification of it until then. The ticket stays open."
          fields={[
            {
              name: 'seconds',
              label: 'For',
              value: '7200',
              options: [
                { value: '900', label: '15 minutes' },
                { value: '3600', label: '1 hour' },
                { value: '7200', label: '2 hours' },
                { value: '28800', label: '8 hours' },
                { value: '86400', label: '1 day' },
              ],
            },
            { name: 'comment', label: 'Why', required: true, hint: 'Shown in Alertmanager.' },
          ]}
          confirm="Silence"
          run={async ({ seconds, comment = '' }) => {
            await data(POST('/api/silences', { body: { ticket_id: ticket.ticket_id, seconds: Number(seconds), comment, ...by() } }))
            say(`Silenced for ${duration(Number(seconds))}.`)
          }}
          onClose={close}
        />
      )}
      {asking === 'resolve' && (
        <Ask
          title="Resolve this ticket?"
          lead="It is closed. If the trouble goes on, a new ticket opens."
          fields={[{ name: 'reason', label: 'What was done', required: true, multiline: true }]}
          confirm="Resolve"
          run={async ({ reason = '' }) => {
            await data(POST('/api/tickets/{ticket_id}/resolve', { ...path, body: { reason, ...by() } }))
            say('Resolved.')
          }}
          onClose={close}
        />
      )}
      {asking === 'dismiss' && (
        <Ask
          title="Dismiss this ticket?"
          lead="It needed no person. Nobody is notified of it again."
          fields={[{ name: 'reason', label: 'Why', required: true, multiline: true }]}
          confirm="Dismiss"
          run={async ({ reason = '' }) => {
            await data(POST('/api/tickets/{ticket_id}/dismiss', { ...path, body: { reason, ...by() } }))
            say('Dismissed.')
          }}
          onClose={close}
        />
      )}
      {asking === 'stop' && (
        <Ask
          title={`Stop ${ticket.worker_agent_id}?`}
          lead={`Session ${ticket.worker_session_id}. The agent is told to stop; its last checkpoint is kept.`}
          fields={[{ name: 'reason', label: 'Reason', required: true }]}
          confirm="Stop"
          danger
          run={({ reason = '' }) => stopWorker({ agentId: ticket.worker_agent_id, session_id: ticket.worker_session_id, incarnation_id: ticket.incarnation_id, reason })}
          onClose={close}
        />
      )}
    </Panel>
  )
}

function Facts({ ticket }: { ticket: Ticket }) {
  const now = useNow()
  const spent = [money(ticket.spent_usd), ticket.spent_tokens ? `${count(ticket.spent_tokens)} tokens` : ''].filter((text) => text && text !== '—')
  return (
    <Panel title="Facts">
      <dl className="facts body">
        <dt>Open for</dt>
        <dd>{duration((ticket.closed_at ?? now) - ticket.first_seen)}</dd>
        {ticket.trouble_since && (
          <>
            <dt>Trouble since</dt>
            <dd>
              <Ago at={ticket.trouble_since} />
            </dd>
          </>
        )}
        {spent.length > 0 && (
          <>
            <dt>Spent since</dt>
            <dd>{spent.join(', ')}</dd>
          </>
        )}
        <dt>Seen</dt>
        <dd>{counted(ticket.occurrences, 'time')}</dd>
        <dt>Steps</dt>
        <dd>
          {counted(ticket.total_steps_checked, 'step')}, {ticket.steps_since_last_accept} bad since the last accepted one
        </dd>
        <dt>Urgency</dt>
        <dd>{ticket.urgency || '—'}</dd>
        <dt>Session</dt>
        <dd className="mono">{ticket.worker_session_id}</dd>
        {ticket.worker_trace_id && (
          <>
            <dt>Trace</dt>
            <dd className="mono">{ticket.worker_trace_id}</dd>
          </>
        )}
        <dt>Ticket</dt>
        <dd className="mono">{ticket.ticket_id}</dd>
      </dl>
    </Panel>
  )
}

function Notified({ ticket }: { ticket: Ticket }) {
  return (
    <Panel title="Notified">
      <ul className="doing">
        {ticket.notified.map((one) => (
          <li key={`${one.receiver}/${one.status}`}>
            <span>
              {one.receiver} <span className="muted">{one.status}</span>
            </span>
            <Ago at={one.first_at} />
          </li>
        ))}
        {ticket.notified.length === 0 && (
          <li className="muted">{ticket.notified_at ? 'Sent to Alertmanager; no receiver has reported it yet.' : 'Nobody: the queen has not approved a notification.'}</li>
        )}
      </ul>
    </Panel>
  )
}

const DOTS: Record<string, string> = {
  queen_intervention_requested: 'page',
  worker_escalation_ticket: 'page',
  receiver_notified: 'page',
  ticket_triaged: 'queen',
  queen_answered: 'queen',
  ticket_resolved: 'done',
  ticket_acknowledged: 'done',
  nudge_sent: 'act',
  intervention_recorded: 'act',
  agent_terminated: 'act',
  termination_requested: 'act',
}

function Timeline({ ticketId }: { ticketId: string }) {
  const found = useQuery({
    queryKey: ['tickets', 'timeline', ticketId],
    queryFn: () => data(GET('/api/tickets/{ticket_id}/timeline', { params: { path: { ticket_id: ticketId } } })),
  })
  return (
    <Panel title="Timeline">
      {found.error ? (
        <ReadError error={found.error} retry={() => void found.refetch()} />
      ) : !found.data ? (
        <Loading />
      ) : (
        <ol className="timeline">
          {found.data.more && <li className="muted">Older entries are in the audit trail.</li>}
          {found.data.timeline.map((entry, index) => (
            <Entry key={`${entry.event_id}/${index}`} entry={entry} />
          ))}
        </ol>
      )}
    </Panel>
  )
}

function Entry({ entry }: { entry: TimelineEntry }) {
  return (
    <li>
      <time className="muted number" dateTime={new Date(entry.at * 1000).toISOString()} title={dateTime(entry.at)}>
        {timeOfDay(entry.at)}
      </time>
      <span className={`dot ${DOTS[entry.what] ?? ''}`} aria-hidden="true" />
      <span className="text">
        {entry.text}
        {entry.by && <span className="muted"> ({entry.by})</span>}
      </span>
    </li>
  )
}
