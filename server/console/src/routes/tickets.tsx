import { useTitle } from '../shell/title'
import './tickets.css'
import { useInfiniteQuery, useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { data, GET } from '../api/client'
import type { Severity, Ticket, TicketStatus } from '../api/schema'
import { count, counted, money, words } from '../format'
import { Ago, Button, Clamped, Empty, Loading, Pill, ReadError, toneOf } from '../ui/basics'
import { Choice, Ignored, isTyping, SearchInput } from '../ui/filters'

/** Groups of statuses in the filter. */
const STATUSES: Record<string, readonly TicketStatus[]> = {
  live: ['open', 'intervening', 'acknowledged'],
  unacknowledged: ['open', 'intervening'],
  acknowledged: ['acknowledged'],
  closed: ['resolved', 'dismissed', 'worker_gone'],
}
const LABELS = { unacknowledged: 'not acknowledged', acknowledged: 'acknowledged', closed: 'closed', all: 'any' }
const SEVERITIES: readonly Severity[] = ['critical', 'high', 'medium', 'low']

/** Tickets, newest first, with filters in the address. */
export function TicketsPage() {
  const address = useSearch({ from: '/tickets' })
  const { agent = '' } = address
  const status = address.status && (Object.hasOwn(LABELS, address.status) || Object.hasOwn(STATUSES, address.status)) ? address.status : 'live'
  const severity = SEVERITIES.find((candidate) => candidate === address.severity) ?? ''
  const ignored = [address.status && address.status !== status ? `status ${address.status}` : '', address.severity && !severity ? `severity ${address.severity}` : ''].filter(Boolean)
  useTitle(agent ? `Tickets of ${agent}` : 'Tickets')
  const navigate = useNavigate()
  const change = (next: Record<string, string>): void => void navigate({ to: '/tickets', search: (before) => Object.fromEntries(Object.entries({ ...before, ...next }).filter(([, value]) => value)), replace: isTyping(agent, next.agent), resetScroll: false })
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
  const isFiltered = status !== 'live' || Boolean(severity || agent)
  const agents = useQuery({
    queryKey: ['agents', 'names', agent],
    queryFn: () => data(GET('/api/agents', { params: { query: { search: agent, limit: 12 } } })),
    enabled: agent !== '',
    placeholderData: (before) => before,
  })
  const names = [...new Set(agent ? agents.data?.agents.map((row) => row.agent_id) : rows?.map((row) => row.agent_id))]
  return (
    <>
      <div className="page-head">
        <h1>Tickets</h1>
      </div>
      <div className="filters" role="group" aria-label="Filters">
        <Choice label="Status" any="Status: open" value={status === 'live' ? '' : status} options={Object.entries(LABELS).map(([name, text]) => [name, `Status: ${text}`])} onChange={(next) => change({ status: next })} />
        <Choice label="Severity" value={severity} options={SEVERITIES} onChange={(next) => change({ severity: next })} />
        <SearchInput label="Agent" value={agent} onChange={(next) => change({ agent: next.trim() })} suggestions={names} />
        {isFiltered && (
          <Button small look="plain" onPress={() => change({ status: '', severity: '', agent: '' })}>
            Clear
          </Button>
        )}
      </div>
      <Ignored values={ignored} onRemove={() => change({ status: status === 'live' ? '' : status, severity })} />
      <section className="panel tickets scroll-x" aria-label="Tickets" tabIndex={0}>
        {tickets.error && !rows ? (
          <ReadError error={tickets.error} retry={() => void tickets.refetch()} />
        ) : !rows ? (
          <Loading rows={5} />
        ) : rows.length === 0 ? (
          <Empty title={isFiltered ? 'No ticket matches these filters' : 'No open tickets'}>
            {agent && names.length > 0 && !names.includes(agent) ? (
              <p className="row wraps">
                Agents with this in their name:
                {names.map((name) => (
                  <Button key={name} small onPress={() => change({ agent: name })}>
                    {name}
                  </Button>
                ))}
              </p>
            ) : (
              !isFiltered && (
                <Button small onPress={() => change({ status: 'all' })}>
                  Show closed ones
                </Button>
              )
            )}
          </Empty>
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
          {ticket.agent_id}: {words(ticket.words_kind ?? ticket.kind)}
        </Link>
        <p className="muted wrap">
          <Clamped text={ticket.cause} />
        </p>
      </td>
      <td className="state">
        {words(ticket.status)}
        {ticket.acknowledged_by && !ticket.closed_at && <small className="muted"> by {ticket.acknowledged_by}</small>}
        {ticket.silenced && <small className="muted"> silenced</small>}
      </td>
      <td className="number hides-small">{count(ticket.occurrences)}×</td>
      <td className="number hides-small">{ticket.spent_usd === null && ticket.spent_tokens ? counted(ticket.spent_tokens, 'token') : money(ticket.spent_usd)}</td>
      <td className="number when">
        <Ago at={ticket.first_seen} />
      </td>
    </tr>
  )
}
