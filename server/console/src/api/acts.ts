import { words } from '../format'
import { by } from '../shell/name'
import { say } from '../ui/act'
import { data, GET, POST, RequestError } from './client'
import type { Intervention } from './schema'

/** A worker as a person saw it: the service refuses an action if another session or process has taken its place. */
export interface Target {
  agentId: string
  session_id: string
  incarnation_id: string
}

type Outcome = Intervention['outcome']

const DONE: ReadonlySet<Outcome> = new Set<Outcome>(['done', 'started', 'queued'])

/** Whether an intervention was carried out, or still is. */
export const isDone = (outcome: Outcome): boolean => DONE.has(outcome)

/** Say what became of an intervention. One that was not carried out stays until it is closed. */
export function sayOutcome(what: string, { outcome, detail }: { outcome: Outcome; detail?: string }): void {
  if (isDone(outcome)) say(detail || `${what[0]!.toUpperCase()}${what.slice(1)}: ${words(outcome)}.`, false)
  else say(`${outcome === 'unconfirmed' ? 'Not confirmed' : 'Not done'}: ${what}. ${detail || `Outcome: ${words(outcome)}.`}`, true)
}

/** Terminate a worker, and say what happened. */
export async function terminateWorker({ agentId, reason, ...seen }: Target & { reason: string }): Promise<void> {
  const result = await data(POST('/api/agents/{agent_id}/terminate', { params: { path: { agent_id: agentId } }, body: { reason, ...seen, ...by() } }))
  sayOutcome(`termination of ${agentId}`, result)
}

/** Send a hint to a worker, and say what happened. An empty message is written by Queenright. */
export async function nudgeWorker({ agentId, message, ...seen }: Target & { message: string }): Promise<void> {
  const result = await data(POST('/api/agents/{agent_id}/nudge', { params: { path: { agent_id: agentId } }, body: { ...(message ? { message } : {}), ...seen, ...by() } }))
  sayOutcome(`nudge of ${agentId}`, result)
}

/** Approve or deny a termination that the queen asks for, and return what to say. */
export async function answerApproval(approvalId: string, { agentId, ...seen }: Target, verb: 'approve' | 'deny'): Promise<string> {
  const path = verb === 'approve' ? '/api/approvals/{approval_id}/approve' : '/api/approvals/{approval_id}/deny'
  await data(POST(path, { params: { path: { approval_id: approvalId } }, body: { ...seen, ...by() } }))
  return verb === 'approve' ? `Approved: ${agentId} is being terminated.` : `Denied: ${agentId} continues.`
}

/** Acknowledge those of these tickets that can be. */
export async function acknowledgeTickets(ids: readonly string[]): Promise<void> {
  for (const ticketId of ids) {
    const path = { params: { path: { ticket_id: ticketId } } }
    const ticket = await data(GET('/api/tickets/{ticket_id}', path))
    if (!ticket.actions.includes('acknowledge')) continue
    await data(POST('/api/tickets/{ticket_id}/acknowledge', { ...path, body: { via: 'api', ...by() } })).catch((error: unknown) => {
      // It has been closed, or acknowledged, meanwhile.
      if (!(error instanceof RequestError && error.status === 409)) throw error
    })
  }
}

/** Who acted, as the command line says it: Queenright's own order of actions is automatic. */
export const actorName = (by: string): string => (by === 'ladder' ? 'automatic' : `by ${by || 'unknown'}`)
