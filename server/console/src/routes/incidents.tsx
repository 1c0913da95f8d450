import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { acknowledgeTickets } from '../api/worker-actions'
import { data, GET } from '../api/client'
import { callerQuery, incidentsQuery } from '../api/queries'
import type { Incident, Ticket } from '../api/schema'
import { counted, duration, words } from '../format'
import { useTitle } from '../shell/title'
import { useAction } from '../ui/toasts'
import { Ago, Button, Empty, Loading, Panel, Pill, ReadError, toneOf } from '../ui/basics'
import { ProviderStatus } from './current-actions'
import './tickets.css'

/** Causes that several workers share, with their tickets. */
export function IncidentsPage() {
  const result = useQuery(incidentsQuery)
  const incidents = result.data?.incidents ?? []
  useTitle('Incidents')
  return (
    <>
      <div className="page-head">
        <h1>Incidents</h1>
      </div>
      <div className="ticket-page">
        <div className="stack">
          {result.error && !result.data ? (
            <ReadError error={result.error} retry={() => void result.refetch()} />
          ) : !result.data ? (
            <Loading rows={5} />
          ) : incidents.length === 0 ? (
            <section className="panel">
              <Empty title="No incidents">
                <p>Several workers that fail for the same cause, such as their provider, are one incident and one page.</p>
              </Empty>
            </section>
          ) : (
            <>
              {incidents.map((incident) => !incident.closed_at && <IncidentItem key={incident.incident_id} incident={incident} />)}
              {incidents.every((incident) => incident.closed_at) && (
                <section className="panel">
                  <Empty title="No open incident" />
                </section>
              )}
              {incidents.some((incident) => incident.closed_at) && <h2>Closed in the last seven days</h2>}
              {incidents.map((incident) => incident.closed_at && <IncidentItem key={incident.incident_id} incident={incident} />)}
            </>
          )}
        </div>
        <ProviderStatus />
      </div>
    </>
  )
}

const CAUSES: Record<string, string> = { provider: 'Provider', mcp: 'MCP server', tool: 'Tool', storm: 'Storm' }

/** `provider:anthropic` as `Provider anthropic`. */
export function describeCause(incident: Incident): string {
  const [kind = '', ...name] = incident.cause.split(':')
  return `${CAUSES[kind] ?? words(kind)} ${name.join(':')}`.trim()
}

/** The status of an incident: open, open only for its cause, or closed. */
export const incidentStatus = (incident: Incident): 'open' | 'workers ended' | 'closed' => (incident.closed_at ? 'closed' : incident.open_tickets ? 'open' : 'workers ended')

/** The sessions and agents that an incident affects. The agents are known only if all its tickets were read. */
export function describeAffected({ workers, ticket_ids }: Incident, tickets: readonly Ticket[]): string {
  const agents = new Set(tickets.map((ticket) => ticket.agent_id)).size
  return `${counted(workers, 'session')}${tickets.length === ticket_ids.length ? ` of ${counted(agents, 'agent')}` : ''}`
}

/** Acknowledge all tickets of an incident that allow it. */
export function useAcknowledgeAll(incident: Incident) {
  return useAction(async () => {
    await acknowledgeTickets(incident.ticket_ids)
    return `Acknowledged the tickets of ${describeCause(incident)}.`
  })
}

/** Whether all tickets are known and none can be acknowledged. */
export const isAcknowledged = (incident: Incident, tickets: readonly Ticket[]): boolean => tickets.length === incident.ticket_ids.length && tickets.every((ticket) => !ticket.actions.includes('acknowledge'))

function IncidentItem({ incident }: { incident: Incident }) {
  const status = incidentStatus(incident)
  const mayAct = useQuery(callerQuery).data?.may_act
  const acknowledge = useAcknowledgeAll(incident)
  const tickets = useChildren(incident.ticket_ids).data ?? []
  return (
    <Panel
      title={
        <Link className="wrap" to="/incidents/$incidentId" params={{ incidentId: incident.incident_id }}>
          {describeCause(incident)}
        </Link>
      }
      aside={
        <>
          <Pill tone={status === 'open' ? toneOf(incident.severity) : 'quiet'}>{status === 'open' ? incident.severity : status}</Pill>
          {mayAct && !incident.closed_at && (
            <Button small onPress={() => acknowledge.mutate()} isDisabled={acknowledge.isPending || isAcknowledged(incident, tickets)}>
              Acknowledge all
            </Button>
          )}
        </>
      }
    >
      <div>
        <p className="body muted">
          {describeAffected(incident, tickets)}, {incident.open_tickets} of {counted(incident.ticket_ids.length, 'ticket')} open, began <Ago at={incident.opened_at} />
          {incident.closed_at && `, lasted ${duration(incident.closed_at - incident.opened_at)}`}
        </p>
        <Children ids={incident.ticket_ids} />
      </div>
    </Panel>
  )
}

const SHOWN = 20

/** Read the first tickets of a list of ids. */
export function useChildren(ids: readonly string[]) {
  const shownIds = ids.slice(0, SHOWN)
  return useQuery({
    queryKey: ['tickets', 'children', ...shownIds],
    queryFn: () => Promise.all(shownIds.map((id) => data(GET('/api/tickets/{ticket_id}', { params: { path: { ticket_id: id } } })))),
  })
}

export function Children({ ids }: { ids: readonly string[] }) {
  const result = useChildren(ids)
  if (!result.data) return result.error ? <ReadError error={result.error} /> : <Loading rows={2} />
  return <TicketList tickets={result.data} more={ids.length - result.data.length} />
}

export function TicketList({ tickets, more = 0 }: { tickets: readonly Ticket[]; more?: number }) {
  return (
    <ul className="ticket-list">
      {tickets.map((ticket) => (
        <li key={ticket.ticket_id}>
          <Pill tone={ticket.closed_at ? 'quiet' : toneOf(ticket.severity)}>{ticket.severity}</Pill>
          <Link className="link clip" to="/tickets/$ticketId" params={{ ticketId: ticket.ticket_id }} title={ticket.cause}>
            {ticket.agent_id}: {words(ticket.words_kind ?? ticket.kind)}
          </Link>
          <span className="muted">
            {words(ticket.status)}
            {ticket.acknowledged_by && !ticket.closed_at && ` by ${ticket.acknowledged_by}`}, <Ago at={ticket.first_seen} />
          </span>
        </li>
      ))}
      {more > 0 && <li className="muted">and {counted(more, 'more ticket')}</li>}
    </ul>
  )
}
