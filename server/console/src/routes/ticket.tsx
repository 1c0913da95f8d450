import { useTitle } from '../shell/title'
import './tickets.css'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate, useParams } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { useEffect, useState } from 'react'
import { data, DELETE, GET, POST, RequestError } from '../api/client'
import { alertmanagerQuery, callerQuery, incidentsQuery, NO_ALERTMANAGER } from '../api/queries'
import type { Ticket, TimelineEntry } from '../api/schema'
import { count, counted, dateTime, duration, money, timeOfDay, words } from '../format'
import { useNow } from '../clock'
import { getActor } from '../shell/user-name'
import { showToast, useAction } from '../ui/toasts'
import { Ago, Button, Clamped, Empty, Loading, Panel, Pill, ReadError, ReadOnly, sentence, toneOf } from '../ui/basics'
import { ConfirmDialog } from '../ui/dialog'
import { describeCause, Children, TicketList } from './incidents'
import { listRunbooks } from './incident-timeline'
import { groupNotifications } from './notifications'
import { QueenChat } from './queen'
import { Runbook } from './runbook'
import { removeRepetitions, removeRepeated } from './repetitions'
import { SilenceTickets, TerminateWorker } from './worker-dialogs'

/** A ticket: its summary, actions, notifications, timeline, and a chat with the queen. */
export function TicketPage() {
  const { ticketId } = useParams({ from: '/tickets/$ticketId' })
  const result = useQuery({
    queryKey: ['tickets', 'one', ticketId],
    queryFn: () => data(GET('/api/tickets/{ticket_id}', { params: { path: { ticket_id: ticketId } } })),
  })
  const navigate = useNavigate()
  const wholeId = result.data?.ticket_id ?? ticketId
  useEffect(() => {
    if (wholeId !== ticketId) void navigate({ to: '/tickets/$ticketId', params: { ticketId: wholeId }, replace: true })
  }, [wholeId, ticketId, navigate])
  useTitle(result.data ? `${result.data.agent_id}: ${words(result.data.words_kind ?? result.data.kind)}` : 'Ticket')
  if (result.error instanceof RequestError && [404, 409].includes(result.error.status) && !result.data)
    return (
      <Empty isPage title={result.error.status === 404 ? 'Ticket not found' : 'Several tickets match'}>
        <p className="wrap">{sentence(result.error.message)}</p>
        <Link to="/tickets" search={{}} className="link">
          Go to the tickets
        </Link>
      </Empty>
    )
  if (result.error && !result.data) return <ReadError error={result.error} retry={() => void result.refetch()} />
  if (!result.data) return <Loading rows={8} />
  const ticket = result.data
  const isOpen = !ticket.closed_at
  return (
    <>
      <div className="page-head">
        <h1 className="wrap">
          <Link to="/agents/$agentId" params={{ agentId: ticket.agent_id }} search={{ session: ticket.session_id }}>
            {ticket.agent_id}
          </Link>
          : {words(ticket.words_kind ?? ticket.kind)}
        </h1>
        <Pill tone={isOpen ? toneOf(ticket.severity) : 'quiet'}>{ticket.severity}</Pill>
        <Pill tone={isOpen ? 'queen' : ticket.status === 'resolved' ? 'healthy' : 'quiet'}>{words(ticket.status)}</Pill>
      </div>
      <Actions ticket={ticket} />
      <div className="ticket-page">
        <div className="stack">
          {ticket.acknowledged_by && isOpen && (
            <p className="notice">
              Acknowledged by <strong>{ticket.acknowledged_by}</strong>
              {ticket.acknowledged_via && ` ${CHANNELS[ticket.acknowledged_via]}`} <Ago at={ticket.acknowledged_at} />
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
          <Summary ticket={ticket} />
          <Related ticket={ticket} />
          <Timeline ticket={ticket} />
          {listRunbooks([ticket]).map((name) => (
            <Runbook key={name} name={name} />
          ))}
        </div>
        <div className="stack">
          <Facts ticket={ticket} />
          <Notifications tickets={[ticket]} />
          <QueenChat key={ticketId} about={{ ticketId: ticketId }} />
        </div>
      </div>
    </>
  )
}

const CHANNELS: Record<NonNullable<Ticket['acknowledged_via']>, string> = {
  api: 'in the console or by the API',
  cli: 'on the command line',
  chat: 'in a chat with the queen',
  slack: 'in Slack',
  pagerduty: 'in PagerDuty',
}

function Summary({ ticket }: { ticket: Ticket }) {
  const [lead, ...parts] = removeRepetitions([
    ['', ticket.analysis || ticket.cause],
    [ticket.analysis && !ticket.closed_at && ticket.occurrences > 1 ? `Cause, updated ${timeOfDay(ticket.last_seen)}` : 'Cause', ticket.cause],
    ['Reason', ticket.judge_reasoning],
    ['Suggested', ticket.closed_at ? '' : ticket.suggested_action],
    ['Evidence', ticket.evidence_snippet],
  ])
  return (
    <Panel title="Summary">
      <div className="body stack">
        {lead && (
          <p className="lead">
            <Clamped text={lead[1]} />
          </p>
        )}
        {parts.map(([label, text]) => (
          <div className="part" key={label}>
            <span>{label}</span>
            {label === 'Evidence' ? <pre>{text}</pre> : <Clamped text={text} />}
          </div>
        ))}
        <p className="row wraps">
          <Link className="link" to="/agents/$agentId" params={{ agentId: ticket.agent_id }} search={{ session: ticket.session_id, view: 'recorder' }}>
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
  const acknowledge = useAction(async () => {
    await data(POST('/api/tickets/{ticket_id}/acknowledge', { ...path, body: { via: 'api', ...getActor() } }))
    return 'Acknowledged.'
  })
  const unacknowledge = useAction(async () => {
    await data(POST('/api/tickets/{ticket_id}/unacknowledge', { ...path, body: { via: 'api', ...getActor() } }))
    return 'The acknowledgement is withdrawn.'
  })
  const queries = useQueryClient()
  const expire = useAction(async (silenceId: string) => {
    await data(DELETE('/api/silences/{silence_id}', { params: { path: { silence_id: silenceId } } }))
    void queries.invalidateQueries({ queryKey: ['tickets'] })
    return 'The silence has ended.'
  })
  const mayNotify = useQuery(alertmanagerQuery).data
  if (mayAct === undefined || (ticket.closed_at && !asking)) return null
  if (!mayAct)
    return (
      <p className="ticket-actions">
        <ReadOnly />
      </p>
    )
  const close = (): void => setAsking(null)
  const settled = ticket.closed_at ? `The ticket was closed in the meantime: ${ticket.closed_reason || words(ticket.status)}. Nothing was sent.` : ''
  return (
    <>
      <div className="row wraps ticket-actions" role="group" aria-label="Actions">
        {ticket.actions.includes('unacknowledge') ? (
          <Button onPress={() => unacknowledge.mutate()} isDisabled={unacknowledge.isPending}>
            Withdraw acknowledgement
          </Button>
        ) : (
          ticket.actions.includes('acknowledge') && (
            <Button look="primary" onPress={() => acknowledge.mutate()} isDisabled={acknowledge.isPending}>
              Acknowledge
            </Button>
          )
        )}
        {ticket.silenced ? (
          <Button onPress={() => ticket.silenced && expire.mutate(ticket.silenced.silence_id)} isDisabled={expire.isPending}>
            End silence
          </Button>
        ) : (
          ticket.notified_severity && mayNotify && <Button onPress={() => setAsking('silence')}>Silence…</Button>
        )}
        {ticket.actions.includes('resolve') && <Button onPress={() => setAsking('resolve')}>Resolve…</Button>}
        {ticket.actions.includes('dismiss') && <Button onPress={() => setAsking('dismiss')}>Dismiss…</Button>}
        {ticket.actions.includes('terminate') && (
          <Button look="danger" onPress={() => setAsking('stop')}>
            Terminate the worker…
          </Button>
        )}
      </div>
      {asking === 'silence' && <SilenceTickets ids={[ticket.ticket_id]} settled={settled} onClose={close} />}
      {asking === 'resolve' && (
        <ConfirmDialog
          title="Resolve this ticket?"
          lead="For a worker that is gone, or work that a person has settled. A ticket of a live worker resolves automatically when the worker recovers."
          fields={[{ name: 'reason', label: 'What was done', required: true, multiline: true }]}
          confirm="Resolve"
          settled={settled}
          run={async ({ reason = '' }) => {
            await data(POST('/api/tickets/{ticket_id}/resolve', { ...path, body: { reason, ...getActor() } }))
            showToast('Resolved.')
          }}
          onClose={close}
        />
      )}
      {asking === 'dismiss' && (
        <ConfirmDialog
          title="Dismiss this ticket?"
          lead="Nobody is notified, and the ticket opens again if the problem gets worse."
          fields={[{ name: 'reason', label: 'Why', required: true, multiline: true }]}
          confirm="Dismiss"
          settled={settled}
          run={async ({ reason = '' }) => {
            await data(POST('/api/tickets/{ticket_id}/dismiss', { ...path, body: { reason, ...getActor() } }))
            showToast('Dismissed.')
          }}
          onClose={close}
        />
      )}
      {asking === 'stop' && <TerminateWorker target={{ agentId: ticket.agent_id, session_id: ticket.session_id, incarnation_id: ticket.incarnation_id }} onClose={close} />}
    </>
  )
}

function Facts({ ticket }: { ticket: Ticket }) {
  const now = useNow()
  const spent = [money(ticket.spent_usd), ticket.spent_tokens ? `${count(ticket.spent_tokens)} tokens` : ''].filter((text) => text && text !== '—')
  return (
    <Panel title="Facts">
      <dl className="facts body">
        <dt>{ticket.closed_at ? 'Was open for' : 'Open for'}</dt>
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
        <dd className="mono">{ticket.session_id}</dd>
        <Traces tickets={[ticket]} />
        <dt>Ticket</dt>
        <dd className="mono">{ticket.ticket_id}</dd>
      </dl>
    </Panel>
  )
}

/** The traces with the problem. For several tickets, they have the names of the agents. */
export function Traces({ tickets }: { tickets: readonly Ticket[] }) {
  const traced = [...new Map(tickets.filter((ticket) => ticket.worker_trace_id).map((ticket) => [ticket.worker_trace_id, ticket])).values()]
  if (!traced.length) return null
  return (
    <>
      <dt>{traced.length > 1 ? 'Traces' : 'Trace'}</dt>
      <dd>
        <ul className="traces">
          {traced.map((ticket) => (
            <li key={ticket.worker_trace_id}>
              {tickets.length > 1 && <span className="wrap">{ticket.agent_id}</span>}
              {ticket.trace_url ? (
                <a className="link mono" href={ticket.trace_url} rel="noreferrer">
                  {ticket.worker_trace_id}
                </a>
              ) : (
                <span className="mono">{ticket.worker_trace_id}</span>
              )}
            </li>
          ))}
        </ul>
      </dd>
    </>
  )
}

/** Notifications of tickets, by receiver. */
export function Notifications({ tickets }: { tickets: readonly Ticket[] }) {
  const rows = groupNotifications(tickets)
  const mayNotify = useQuery(alertmanagerQuery).data
  const [ticket] = tickets
  const reminders = tickets.reduce((sum, row) => sum + row.reminders, 0)
  return (
    <Panel title="Notifications">
      <ul className="doing">
        {rows.map((row) => (
          <li key={`${row.receiver}/${row.status}`}>
            <span className="grow">
              <strong>{row.receiver}</strong>{' '}
              <span className="muted">
                {row.status}, {timeOfDay(row.first_at)}
                {row.at > row.first_at && `, last ${timeOfDay(row.at)}`}
                {tickets.length > 1 && `, ${counted(row.tickets, 'ticket')}`}
              </span>
            </span>
            <Ago at={row.at} />
          </li>
        ))}
        {rows.length === 0 && (
          <li className="muted">{mayNotify === false ? NO_ALERTMANAGER : tickets.some((row) => row.notified_at) ? 'Sent to Alertmanager; no receiver has confirmed it yet.' : ticket?.closed_at ? 'Nobody was notified.' : 'Nobody: the queen has not approved a notification.'}</li>
        )}
        {reminders > 0 && <li className="muted">{counted(reminders, 'reminder')} sent because nobody acknowledged it.</li>}
      </ul>
    </Panel>
  )
}

/** Tickets of the same incident, and earlier tickets of the worker. */
function Related({ ticket }: { ticket: Ticket }) {
  const incident = useQuery({ ...incidentsQuery, enabled: ticket.storm_id !== '' }).data?.incidents.find((candidate) => candidate.ticket_ids.includes(ticket.ticket_id))
  const others = useQuery({
    queryKey: ['tickets', 'of', ticket.agent_id],
    queryFn: () => data(GET('/api/tickets', { params: { query: { agent_id: ticket.agent_id, limit: 50 } } })),
  }).data?.tickets.filter((candidate) => candidate.ticket_id !== ticket.ticket_id)
  const root = ticket.incident_id || ticket.ticket_id
  const sameAlert = others?.filter((candidate) => candidate.ticket_id === root || candidate.incident_id === root) ?? []
  const earlier = others?.filter((candidate) => !sameAlert.includes(candidate)) ?? []
  return (
    <>
      {incident && (
        <Panel title={`Incident: ${describeCause(incident)}`} aside={<Link to="/incidents/$incidentId" params={{ incidentId: incident.incident_id }} className="link muted">{counted(incident.workers, 'worker')}</Link>}>
          <Children ids={incident.ticket_ids.filter((id) => id !== ticket.ticket_id)} />
        </Panel>
      )}
      {sameAlert.length > 0 && (
        <Panel title="Same alert">
          <TicketList tickets={sameAlert} />
        </Panel>
      )}
      {earlier.length > 0 && (
        <Panel
          title="Other tickets of this worker"
          aside={
            <Link to="/tickets" search={{ agent: ticket.agent_id, status: 'all' }} className="link muted">
              All
            </Link>
          }
        >
          <TicketList tickets={earlier.slice(0, 4)} />
        </Panel>
      )}
    </>
  )
}

const DOTS: Record<string, string> = {
  queen_intervention_requested: 'page',
  worker_escalation_ticket: 'page',
  ticket_triaged: 'queen',
  queen_answered: 'queen',
  ticket_resolved: 'done',
  ticket_acknowledged: 'done',
  nudge_sent: 'act',
  intervention_recorded: 'act',
  agent_terminated: 'act',
  termination_requested: 'act',
}

/** The tone of an entry's dot. */
const dotTone = ({ what, status }: TimelineEntry): string => (what === 'receiver_notified' ? (status === 'resolved' ? 'done' : 'page') : (DOTS[what] ?? ''))

const TO_OPERATOR = 'queen → operator: '

function Timeline({ ticket }: { ticket: Ticket }) {
  const timeline = useQuery({
    queryKey: ['tickets', 'timeline', ticket.ticket_id],
    queryFn: () => data(GET('/api/tickets/{ticket_id}/timeline', { params: { path: { ticket_id: ticket.ticket_id } } })),
  })
  const shownTexts = [ticket.analysis, ticket.cause, ticket.suggested_action]
  return (
    <Panel title="Timeline">
      {timeline.error && !timeline.data ? (
        <ReadError error={timeline.error} retry={() => void timeline.refetch()} />
      ) : !timeline.data ? (
        <Loading />
      ) : (
        <ol className="history">
          {timeline.data.more && <li className="muted">Older entries are in the audit trail.</li>}
          {timeline.data.timeline.map((entry, index) => (
            <Entry key={`${entry.event_id}/${index}`} entry={entry} text={entryText(entry, shownTexts)} />
          ))}
        </ol>
      )}
    </Panel>
  )
}

/** The text of an entry without sentences that the page or an earlier entry has. */
function entryText(entry: TimelineEntry, shownTexts: string[]): string {
  if (entry.what !== 'queen_intervention_requested' || !entry.text.startsWith(TO_OPERATOR)) return entry.text
  const text = entry.text.slice(TO_OPERATOR.length)
  const fresh = removeRepeated(text, shownTexts)
  shownTexts.push(text)
  return `${TO_OPERATOR}${fresh || 'a person is needed'}`
}

/** An entry of a timeline. `about` is the ticket of the entry if there are several tickets. */
export function Entry({ entry, text, about }: { entry: TimelineEntry; text: string; about?: ReactNode }) {
  return (
    <li>
      <time className="muted number" dateTime={new Date(entry.at * 1000).toISOString()} title={dateTime(entry.at)}>
        {timeOfDay(entry.at)}
      </time>
      <span className={`dot ${dotTone(entry)}`} aria-hidden="true" />
      <span className="text">
        {about}
        <Clamped text={text} />
        {entry.by && !text.includes(entry.by) && <span className="muted"> ({entry.by})</span>}
      </span>
    </li>
  )
}
