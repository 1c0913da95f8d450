import { expect, test } from 'vitest'
import type { Ticket, Timeline, TimelineEntry } from '../api/schema'
import { mergeTimelines, listRunbooks } from './incident-timeline'

const ticket = (ticket_id: string): Ticket => ({ ticket_id }) as Ticket
const timeline = (...entries: Partial<TimelineEntry>[]): Timeline => ({ timeline: entries.map((entry) => ({ at: 0, what: '', text: '', by: '', status: '', event_id: '', ...entry })), more: false })

test('timelines of several tickets are merged by time', () => {
  const [a, b] = [ticket('a'), ticket('b')]
  const found = mergeTimelines([a, b], [timeline({ at: 1, text: 'a opened' }, { at: 9, text: 'a resolved' }), timeline({ at: 3, text: 'b opened' })])
  expect(found.map((entry) => [entry.text, entry.tickets])).toEqual([['a opened', [a]], ['b opened', [b]], ['a resolved', [a]]])
})

test('simultaneous events of several tickets are one entry', () => {
  const [a, b] = [ticket('a'), ticket('b')]
  const notified = { what: 'receiver_notified', text: 'Alertmanager notified slack (firing)' }
  const found = mergeTimelines([a, b], [timeline({ at: 1, event_id: 'nudge' }, { at: 5, ...notified }), timeline({ at: 1, event_id: 'nudge' }, { at: 15, ...notified }, { at: 300, ...notified })])
  expect(found.map((entry) => [entry.at, entry.tickets.length])).toEqual([[1, 2], [5, 2], [300, 1]])
})

test('runbook of a finding precedes that of its alert, and all runbooks exist', () => {
  expect(listRunbooks([{ kind: 'stall' }, { kind: 'doom_loop' }, { kind: 'doom_loop' }] as Ticket[])).toEqual(['QueenrightLoop', 'QueenrightWorkerStalled', 'QueenrightIntervention'])
  expect(listRunbooks([{ kind: 'spending' }] as Ticket[])).toEqual(['QueenrightIntervention'])
  const files = Object.keys(import.meta.glob('../../../../alerting/runbooks/*.md'))
  const kinds = ['stall', 'doom_loop', 'tool_timeout', 'token_burn', 'checkpoint_stale', 'error_rate', 'heartbeat_missing', 'recovery_failed', 'retry_storm', 'circuit_breaker_open']
  for (const name of listRunbooks(kinds.map((kind) => ({ kind }) as Ticket))) expect(files.some((file) => file.endsWith(`/${name}.md`)), name).toBe(true)
})
