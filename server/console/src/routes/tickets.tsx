import './tickets.css'
import { useInfiniteQuery } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { data, GET } from '../api/client'
import type { Severity, Ticket, TicketStatus } from '../api/schema'
import { count, money, words } from '../format'
import { Ago, Button, Empty, Loading, Pill, ReadError, toneOf } from '../ui/basics'

/** Groups of statuses, as people ask for them. */
const STATUSES: Record<string, readonly TicketStatus[]> = {
  live: ['open', 'intervening', 'acknowledged'],
  unacknowledged: ['open', 'intervening'],
  acknowledged: ['acknowledged'],
  closed: ['resolved', 'dismissed', 'worker_gone'],
}
const SEVERITIES: readonly Severity[] = ['critical', 'high', 'medium', 'low']

/** Tickets, newest first, with filters in the address. */
export function TicketsPage() {
  const { status = 'live', severity = '', agent = '' } = useSearch({ from: '/tickets' })
  const navigate = useNavigate()
  const change = (next: Record<string, string>): void => void navigate({ to: '/tickets', search: (before) => ({ ...before, ...next }), replace: true })
  const tickets = useInfiniteQuery({
    queryKey: ['tickets', 'list', status, severity, agent],
    queryFn: ({ pageParam }) =>
      data(
        GET('/api/tickets', {
          params: {
            query: {
              limit: 50,
              ...(STATUSES[status] ? { status: [...STATUSES[status]] } : {}),
              ...(severity ? { severity: severity as Severity } : {}),
              ...(agent ? { agent_id: agent } : {}),
              ...(pageParam ? { cursor: pageParam } : {}),
            },
          },
        }),
      ),
    initialPageParam: '',
    getNextPageParam: (last) => last.next ?? undefined,
    placeholderData: (before) => before,
  })
  const rows = tickets.data?.pages.flatMap((page) => page.tickets)
  return (
    <>
      <div className="page-head">
        <h1>Tickets</h1>
      </div>
      <div className="filters" role="group" aria-label="Filters">
        <select className="input" aria-label="Status" value={status} onChange={(event) => change({ status: event.target.value })}>
          <option value="live">Status: open</option>
          <option value="unacknowledged">not acknowledged</option>
          <option value="acknowledged">acknowledged</option>
          <option value="closed">closed</option>
          <option value="all">any</option>
        </select>
        <select className="input" aria-label="Severity" value={severity} onChange={(event) => change({ severity: event.target.value })}>
          <option value="">Severity: any</option>
          {SEVERITIES.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        {agent && (
          <Button small onPress={() => change({ agent: '' })} aria-label={`Show the tickets of all agents, not only of ${agent}`}>
            Agent: {agent} ✕
          </Button>
        )}
      </div>
      <section className="panel tickets scroll-x" aria-label="Tickets" tabIndex={0}>
        {tickets.error && !rows ? (
          <ReadError error={tickets.error} retry={() => void tickets.refetch()} />
        ) : !rows ? (
          <Loading rows={5} />
        ) : rows.length === 0 ? (
          <Empty title={status === 'live' && !severity && !agent ? 'No open tickets' : 'No ticket matches these filters'} />
        ) : (
          <table className="table">
            <thead>
              <tr>
                <th scope="col">Severity</th>
                <th scope="col">Ticket</th>
                <th scope="col">Status</th>
                <th scope="col" className="number hides-small">
                  Seen
                </th>
                <th scope="col" className="number hides-small">
                  Spent
                </th>
                <th scope="col" className="number">
                  Opened
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((ticket) => (
                <Row key={ticket.ticket_id} ticket={ticket} />
              ))}
            </tbody>
          </table>
        )}
      </section>
      {tickets.hasNextPage && (
        <p style={{ padding: 12 }}>
          <Button onPress={() => void tickets.fetchNextPage()} isDisabled={tickets.isFetchingNextPage}>
            Show older tickets
          </Button>
        </p>
      )}
    </>
  )
}

function Row({ ticket }: { ticket: Ticket }) {
  return (
    <tr>
      <td>
        <Pill tone={ticket.closed_at ? 'quiet' : toneOf(ticket.severity)}>{ticket.severity}</Pill>
      </td>
      <td className="what wrap">
        <Link to="/tickets/$ticketId" params={{ ticketId: ticket.ticket_id }}>
          {ticket.worker_agent_id}: {words(ticket.words_kind ?? ticket.kind)}
        </Link>
        <p className="muted wrap">{ticket.cause}</p>
      </td>
      <td>
        {words(ticket.status)}
        {ticket.acknowledged_by && !ticket.closed_at && <small className="muted"> by {ticket.acknowledged_by}</small>}
        {ticket.silenced && <small className="muted"> silenced</small>}
      </td>
      <td className="number hides-small">{count(ticket.occurrences)}×</td>
      <td className="number hides-small">{money(ticket.spent_usd)}</td>
      <td className="number">
        <Ago at={ticket.first_seen} />
      </td>
    </tr>
  )
}
