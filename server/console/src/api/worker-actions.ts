import { words } from '../format'
import { getActor } from '../shell/user-name'
import { showToast } from '../ui/toasts'
import { data, GET, POST, RequestError } from './client'
import type { Intervention } from './schema'

/** The worker that the operator saw. The service refuses an action if its session or process has changed since. */
export interface Target {
  agentId: string
  session_id: string
  incarnation_id: string
}

type Outcome = Intervention['outcome']

const ACCEPTED: ReadonlySet<Outcome> = new Set<Outcome>(['done', 'started', 'queued'])

/** Whether an intervention was carried out, or is still in progress. */
export const isAccepted = (outcome: Outcome): boolean => ACCEPTED.has(outcome)

/** Show the outcome of an intervention. A failure stays until it is closed. */
export function showOutcome(what: string, { outcome, detail }: { outcome: Outcome; detail?: string }): void {
  if (isAccepted(outcome)) showToast(detail || `${what[0]!.toUpperCase()}${what.slice(1)}: ${words(outcome)}.`, false)
  else showToast(`${outcome === 'unconfirmed' ? 'Not confirmed' : 'Not carried out'}: ${what}. ${detail || `Outcome: ${words(outcome)}.`}`, true)
}

/** Terminate a worker, and show the outcome. */
export async function terminateWorker({ agentId, reason, ...target }: Target & { reason: string }): Promise<void> {
  const result = await data(POST('/api/agents/{agent_id}/terminate', { params: { path: { agent_id: agentId } }, body: { reason, ...target, ...getActor() } }))
  showOutcome(`termination of ${agentId}`, result)
}

/** Nudge a worker, and show the outcome. If the message is empty, Queenright writes it. */
export async function nudgeWorker({ agentId, message, ...target }: Target & { message: string }): Promise<void> {
  const result = await data(POST('/api/agents/{agent_id}/nudge', { params: { path: { agent_id: agentId } }, body: { ...(message ? { message } : {}), ...target, ...getActor() } }))
  showOutcome(`nudge of ${agentId}`, result)
}

/** Approve or deny a termination that the queen requested, and return the text to show. */
export async function answerApproval(approvalId: string, { agentId, ...target }: Target, verb: 'approve' | 'deny'): Promise<string> {
  const path = verb === 'approve' ? '/api/approvals/{approval_id}/approve' : '/api/approvals/{approval_id}/deny'
  await data(POST(path, { params: { path: { approval_id: approvalId } }, body: { ...target, ...getActor() } }))
  return verb === 'approve' ? `Approved: ${agentId} is being terminated.` : `Denied: ${agentId} continues.`
}

/** Acknowledge the tickets that allow it; skip the others. */
export async function acknowledgeTickets(ids: readonly string[]): Promise<void> {
  for (const ticketId of ids) {
    const path = { params: { path: { ticket_id: ticketId } } }
    const ticket = await data(GET('/api/tickets/{ticket_id}', path))
    if (!ticket.actions.includes('acknowledge')) continue
    await data(POST('/api/tickets/{ticket_id}/acknowledge', { ...path, body: { via: 'api', ...getActor() } })).catch((error: unknown) => {
      // The ticket was closed or acknowledged in the meantime.
      if (!(error instanceof RequestError && error.status === 409)) throw error
    })
  }
}

/** The actor of an action, as in the CLI: actions of the intervention ladder are `automatic`. */
export const actorName = (by: string): string => (by === 'ladder' ? 'automatic' : `by ${by || 'unknown'}`)
