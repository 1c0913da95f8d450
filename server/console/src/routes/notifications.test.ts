import { expect, test } from 'vitest'
import type { Ticket } from '../api/schema'
import { groupNotifications } from './notifications'

const ticket = (...notified: [string, string, number, number][]) => 
  ({ notified: notified.map(([receiver, status, first_at, at]) => ({ receiver, status, first_at, at })) }) as Pick<Ticket, 'notified'>

test('notifications of several tickets are grouped by receiver and status', () => {
  expect(groupNotifications([ticket(['slack', 'firing', 20, 30], ['pagerduty', 'firing', 10, 10]), ticket(['slack', 'firing', 15, 15]), ticket()])).toEqual([
    { receiver: 'pagerduty', status: 'firing', first_at: 10, at: 10, tickets: 1 },
    { receiver: 'slack', status: 'firing', first_at: 15, at: 30, tickets: 2 },
  ])
})
