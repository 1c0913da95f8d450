import type { Ticket } from '../api/schema'

type Notification = Ticket['notified'][number]

/** Group notifications of tickets by receiver and status, with first and last time and number of tickets, oldest first. */
export function groupNotifications(tickets: readonly Pick<Ticket, 'notified'>[]): (Notification & { tickets: number })[] {
  const found = new Map<string, Notification & { tickets: number }>()
  for (const one of tickets.flatMap((ticket) => ticket.notified)) {
    const key = `${one.receiver}\n${one.status}`
    const known = found.get(key) ?? { ...one, tickets: 0 }
    found.set(key, { ...known, first_at: Math.min(known.first_at, one.first_at), at: Math.max(known.at, one.at), tickets: known.tickets + 1 })
  }
  return [...found.values()].sort((one, other) => one.first_at - other.first_at)
}
