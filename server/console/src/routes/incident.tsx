import './tickets.css'
import { useQuery } from '@tanstack/react-query'
import { Link, useParams } from '@tanstack/react-router'
import { useState } from 'react'
import { data, GET } from '../api/client'
import { alertmanagerQuery, callerQuery, incidentsQuery } from '../api/queries'
import type { Incident, Ticket } from '../api/schema'
import { useNow } from '../clock'
import { counted, duration } from '../format'
import { useTitle } from '../shell/title'
import { Ago, Button, Empty, Loading, Panel, Pill, ReadError, ReadOnly, toneOf } from '../ui/basics'
import { describeAffected, describeCause, isAcknowledged, incidentStatus, TicketList, useAcknowledgeAll, useChildren } from './incidents'
import { mergeTimelines, listRunbooks } from './incident-timeline'
import type { IncidentEntry } from './incident-timeline'
import { QueenChat } from './queen'
import { Runbook } from './runbook'
import { Entry, Notifications, Traces } from './ticket'
import { SilenceTickets } from './worker-dialogs'

/** An incident: its tickets, notifications, and actions on all tickets. */
export function IncidentPage() {
  const { incidentId } = useParams({ from: '/incidents/$incidentId' })
  const incidents = useQuery(incidentsQuery)
  const incident = incidents.data?.incidents.find((candidate) => candidate.incident_id === incidentId)
  useTitle(incident ? `Incident: ${describeCause(incident)}` : 'Incident')
  if (incident) return <IncidentView incident={incident} />
  if (incidents.error && !incidents.data) return <ReadError error={incidents.error} retry={() => void incidents.refetch()} />
  if (!incidents.data) return <Loading rows={8} />
  return (
    <Empty isPage title="Incident not found">
      <p>Incidents are listed for seven days; the tickets stay.</p>
      <Link to="/tickets/$ticketId" params={{ ticketId: incidentId }} className="link">
        Open its first ticket
      </Link>
    </Empty>
  )
}

function IncidentView({ incident }: { incident: Incident }) {
  const now = useNow()
  const tickets = useChildren(incident.ticket_ids)
  const isOpen = !incident.closed_at
  const status = incidentStatus(incident)
  return (
    <>
      <div className="page-head">
        <h1 className="wrap">{describeCause(incident)}</h1>
        <Pill tone={status === 'open' ? toneOf(incident.severity) : 'quiet'}>{incident.severity}</Pill>
        <Pill tone={status === 'open' ? 'queen' : 'quiet'}>{status}</Pill>
      </div>
      <Actions incident={incident} tickets={tickets.data ?? []} />
      <div className="ticket-page">
        <div className="stack">
          <Panel title="Tickets" aside={<span className="muted number">{incident.open_tickets} of {incident.ticket_ids.length} open</span>}>
            {tickets.data ? (
              <TicketList tickets={tickets.data} more={incident.ticket_ids.length - tickets.data.length} />
            ) : tickets.error ? (
              <ReadError error={tickets.error} retry={() => void tickets.refetch()} />
            ) : (
              <Loading rows={3} />
            )}
          </Panel>
          {tickets.data && <Timeline tickets={tickets.data} more={incident.ticket_ids.length - tickets.data.length} />}
          {tickets.data && listRunbooks(tickets.data).map((name, index) => <Runbook key={name} name={name} isOpen={isOpen && index === 0} />)}
        </div>
        <div className="stack">
          <Panel title="Facts">
            <dl className="facts body">
              <dt>{isOpen ? 'Open for' : 'Was open for'}</dt>
              <dd>{duration((incident.closed_at ?? now) - incident.opened_at)}</dd>
              <dt>Began</dt>
              <dd>
                <Ago at={incident.opened_at} />
              </dd>
              <dt>Affects</dt>
              <dd>{describeAffected(incident, tickets.data ?? [])}</dd>
              <Traces tickets={tickets.data ?? []} />
              <dt>Incident</dt>
              <dd className="mono">{incident.incident_id}</dd>
            </dl>
          </Panel>
          {tickets.data && <Notifications tickets={tickets.data} />}
          <QueenChat key={incident.incident_id} about={{ ticketId: incident.incident_id }} />
        </div>
      </div>
    </>
  )
}

/** Events of the tickets, with interventions and notifications. */
function Timeline({ tickets, more }: { tickets: readonly Ticket[]; more: number }) {
  const ids = tickets.map((ticket) => ticket.ticket_id)
  const timelines = useQuery({
    queryKey: ['tickets', 'timelines', ...ids],
    queryFn: () => Promise.all(ids.map((id) => data(GET('/api/tickets/{ticket_id}/timeline', { params: { path: { ticket_id: id } } })))),
  })
  const entries = timelines.data ? mergeTimelines(tickets, timelines.data) : []
  return (
    <Panel title="Timeline" aside={entries.length > 0 && <span className="muted number">{counted(entries.length, 'event')}</span>}>
      {timelines.error && !timelines.data ? (
        <ReadError error={timelines.error} retry={() => void timelines.refetch()} />
      ) : !timelines.data ? (
        <Loading />
      ) : (
        <ol className="history long-history">
          {more > 0 && <li className="muted">Without {counted(more, 'ticket')} that {more === 1 ? 'is' : 'are'} not shown.</li>}
          {entries.map((entry, index) => (
            <Entry key={`${entry.event_id}/${index}`} entry={entry} text={entry.text} about={<About entry={entry} />} />
          ))}
        </ol>
      )}
    </Panel>
  )
}

/** The ticket of an entry, unless the text has it. */
function About({ entry }: { entry: IncidentEntry }) {
  const [ticket] = entry.tickets
  if (entry.tickets.length > 1) return <span className="about">{counted(entry.tickets.length, 'ticket')}: </span>
  if (!ticket || entry.text.includes(ticket.agent_id)) return null
  return (
    <span className="about">
      <Link to="/tickets/$ticketId" params={{ ticketId: ticket.ticket_id }} className="link">
        {ticket.agent_id}
      </Link>
      :{' '}
    </span>
  )
}

function Actions({ incident, tickets }: { incident: Incident; tickets: readonly Ticket[] }) {
  const mayAct = useQuery(callerQuery).data?.may_act
  const [silencing, setSilencing] = useState<readonly string[] | null>(null)
  const acknowledge = useAcknowledgeAll(incident)
  const open = tickets.filter((candidate) => !candidate.closed_at)
  const shownIds = new Set(tickets.map((candidate) => candidate.ticket_id))
  // The tickets that are not shown may be open.
  const others = incident.ticket_ids.filter((id) => !shownIds.has(id))
  const notSilenced = [...open.filter((candidate) => !candidate.silenced).map((candidate) => candidate.ticket_id), ...others]
  const mayNotify = useQuery(alertmanagerQuery).data
  if (mayAct === undefined || (incident.closed_at && !silencing)) return null
  if (!mayAct)
    return (
      <p className="ticket-actions">
        <ReadOnly />
      </p>
    )
  return (
    <>
      <div className="row wraps ticket-actions" role="group" aria-label="Actions">
        <Button look="primary" onPress={() => acknowledge.mutate()} isDisabled={acknowledge.isPending || isAcknowledged(incident, tickets)}>
          Acknowledge all
        </Button>
        {mayNotify && (
          <Button onPress={() => setSilencing(notSilenced)} isDisabled={notSilenced.length === 0}>
            {open.length && !notSilenced.length ? 'Silenced' : 'Silence all…'}
          </Button>
        )}
      </div>
      {silencing && <SilenceTickets ids={silencing} settled={incident.closed_at ? 'The incident was closed in the meantime. Nothing was sent.' : ''} onClose={() => setSilencing(null)} />}
    </>
  )
}
