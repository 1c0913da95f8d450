import type { Ticket } from '../api/schema'

type Notification = Ticket['notified'][number]

/** Group notifications of tickets by receiver and status, with first and last time and number of tickets, oldest first. */
export function groupNotifications(tickets: readonly Pick<Ticket, 'notified'>[]): (Notification & { tickets: number })[] {
  const groups = new Map<string, Notification & { tickets: number }>()
  for (const notification of tickets.flatMap((ticket) => ticket.notified)) {
    const key = `${notification.receiver}\n${notification.status}`
    const group = groups.get(key) ?? { ...notification, tickets: 0 }
    groups.set(key, { ...group, first_at: Math.min(group.first_at, notification.first_at), at: Math.max(group.at, notification.at), tickets: group.tickets + 1 })
  }
  return [...groups.values()].sort((a, b) => a.first_at - b.first_at)
}
