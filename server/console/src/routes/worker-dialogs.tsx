import { useQuery, useQueryClient } from '@tanstack/react-query'
import { answerApproval, terminateWorker } from '../api/worker-actions'
import type { Target } from '../api/worker-actions'
import { data, GET, POST, RequestError } from '../api/client'
import { duration, words } from '../format'
import { getActor } from '../shell/user-name'
import { showToast } from '../ui/toasts'
import { Clamped } from '../ui/basics'
import { ConfirmDialog } from '../ui/dialog'
import { TargetDetails } from './target-details'
import { DECISIONS } from './decisions'
import type { Decision } from './decisions'
import { parseDuration } from './silence'

// Dialogs that several pages share. They load when the first one opens.

/** Confirm the termination of a worker. `approve` terminates it without a new reason; `why` is the reason of the request. */
export function TerminateWorker({ target, why, settled, approve, onClose }: { target: Target; why?: string; settled?: string; approve?: () => Promise<unknown>; onClose: () => void }) {
  return (
    <ConfirmDialog
      title={`Terminate ${target.agentId}?`}
      lead="The agent is told to stop; its last checkpoint is kept."
      target={<><Reason text={why} /><TargetDetails {...target} /></>}
      fields={approve ? [] : [{ name: 'reason', label: 'Reason', required: true }]}
      confirm="Terminate"
      danger
      settled={settled}
      run={({ reason = '' }) => (approve ? approve() : terminateWorker({ ...target, reason }))}
      onClose={onClose}
    />
  )
}

const DURATIONS = [
  { value: '900', label: '15 minutes' },
  { value: '3600', label: '1 hour' },
  { value: '7200', label: '2 hours' },
  { value: '14400', label: '4 hours' },
  { value: '28800', label: '8 hours' },
  { value: '86400', label: '24 hours' },
]

/** Ask for the duration and reason of a silence. */
export function SilenceTickets({ ids, settled, onClose }: { ids: readonly string[]; settled?: string; onClose: () => void }) {
  const queries = useQueryClient()
  return (
    <ConfirmDialog
      title={ids.length === 1 ? 'Silence this ticket' : `Silence ${ids.length} tickets`}
      lead="No notification is sent for this ticket, or for other tickets of the worker with the same cause. Silenced tickets stay open; if you work on them, acknowledge them instead."
      fields={[
        { name: 'seconds', label: 'For', value: '7200', options: DURATIONS },
        { name: 'other', label: 'Another duration', hint: 'Such as 90m, 3h or 2d; instead of the choice above.' },
        { name: 'comment', label: 'Why', required: true, hint: 'Shown in Alertmanager.' },
      ]}
      confirm="Silence"
      settled={settled}
      run={async ({ seconds: chosen, other, comment = '' }) => {
        const seconds = other ? parseDuration(other) : Number(chosen)
        let refused: RequestError | undefined
        let silenced = 0
        try {
          for (const ticket_id of ids)
            try {
              await data(POST('/api/silences', { body: { ticket_id, seconds, comment, ...getActor() } }))
              silenced++
            } catch (error) {
              // Skip tickets that are closed or without notifications; silence the others.
              if (!(error instanceof RequestError && error.status === 409)) throw error
              refused = error
            }
        } finally {
          // A silence publishes no event.
          void queries.invalidateQueries({ queryKey: ['tickets'] })
        }
        if (refused && !silenced) throw refused
        showToast(`Silenced ${ids.length === 1 ? '' : `${silenced} of ${ids.length} tickets `}for ${duration(seconds)}.`)
      }}
      onClose={onClose}
    />
  )
}

/**
 * Confirm the recovery of a task.
 *
 * @param taskId The task; if empty, the dialog asks for it.
 * @param target The worker of the task, as shown on the page.
 * @param name The name in messages; by default the task.
 */
export function RecoverTask({ taskId, target, name, onClose }: { taskId: string; target?: { session_id: string; incarnation_id: string }; name?: string; onClose: () => void }) {
  return (
    <ConfirmDialog
      title={taskId ? `Recover ${name ?? taskId}?` : 'Recover a task'}
      lead="Its worker is started again, unless the task is finished or still runs."
      target={taskId && <p className="mono muted wrap" style={{ fontSize: 12 }}>Task {taskId}</p>}
      fields={[
        ...(taskId ? [] : [{ name: 'task_id', label: 'Task', required: true, hint: 'A task id, or the id of a session.' }]),
        { name: 'start', label: 'From', options: [{ value: '', label: 'Its last valid checkpoint' }, { value: 'start', label: 'The start, if there is no checkpoint: completed work is repeated' }] },
        { name: 'reviewed', label: 'Attempts', options: [{ value: '', label: 'Within the limit' }, { value: 'yes', label: 'One more: I reviewed the failure' }] },
      ]}
      confirm="Recover"
      run={async ({ task_id = taskId, start, reviewed }) => {
        const result = await data(POST('/api/recoveries', { body: { task_id, from_start: start === 'start', reviewed: reviewed === 'yes', ...target, ...getActor() } }))
        if (!result.accepted) throw new Error(result.reason || 'The recovery was not accepted.')
        showToast(`Recovery of ${name ?? task_id}: attempt ${result.attempt}. ${result.reason}`.trim())
      }}
      onClose={onClose}
    />
  )
}

const MORE_TIME = [
  { value: '900', label: '15 minutes' },
  { value: '1800', label: '30 minutes' },
  { value: '3600', label: '1 hour' },
  { value: '14400', label: '4 hours' },
]

/** A decision that a person must make. */
export type WaitingDecision = { id: string } & ({ kind: 'approval' } | { kind: 'escalation'; choice: Decision })

/** The reason for a decision, on separate lines. */
const Reason = ({ text }: { text: string | undefined }) => text && <p className="wrap lines"><Clamped text={text} /></p>

/** Confirm a decision. If it is not `isOpen`, the dialog shows how it was decided. `why` is the reason for it. */
export function Decide({ decision, target, why, isOpen, onClose }: { decision: WaitingDecision; target: Target; why: string; isOpen: boolean; onClose: () => void }) {
  const outcome = useQuery({
    queryKey: ['acting', decision.kind, decision.id],
    queryFn: () => (decision.kind === 'approval' ? describeApprovalOutcome(decision.id) : describeEscalationOutcome(decision.id)),
    enabled: !isOpen,
  })
  const settled = isOpen ? '' : (outcome.data ?? 'It no longer waits for a decision.')
  if (decision.kind === 'escalation') return <DecideEscalation escalationId={decision.id} choice={decision.choice} target={target} why={why} settled={settled} onClose={onClose} />
  return <TerminateWorker target={target} why={why} settled={settled} approve={async () => showToast(await answerApproval(decision.id, target, 'approve'))} onClose={onClose} />
}

async function describeApprovalOutcome(id: string): Promise<string> {
  const { approvals } = await data(GET('/api/approvals', { params: { query: { limit: NEWEST } } }))
  const approval = approvals.find((candidate) => candidate.approval_id === id)
  return outcomeText(approval?.status ?? 'decided', approval?.decided_by)
}

async function describeEscalationOutcome(id: string): Promise<string> {
  const { escalations } = await data(GET('/api/escalations', { params: { query: { limit: NEWEST } } }))
  const escalation = escalations.find((candidate) => candidate.escalation_id === id)
  const decision = escalation?.decision as Decision | '' | null | undefined
  return outcomeText(decision ? `decided (${DECISIONS[decision].toLowerCase()})` : (escalation?.status ?? 'decided'), escalation?.decided_by)
}

const NEWEST = 200

const outcomeText = (status: string, by: string | null | undefined): string => `In the meantime, it was ${status === 'void' ? 'withdrawn' : words(status)}${by ? ` by ${by}` : ''}. Nothing was sent.`

function DecideEscalation({ escalationId, target, choice, why, settled, onClose }: { escalationId: string; target: Target; choice: Decision; why: string; settled: string; onClose: () => void }) {
  const { agentId, ...session } = target
  return (
    <ConfirmDialog
      title={`${DECISIONS[choice]}: ${agentId}?`}
      target={<><Reason text={why} /><TargetDetails {...session} /></>}
      settled={settled}
      fields={[
        ...(choice === 'more_time' ? [{ name: 'seconds', label: 'For', value: '1800', options: MORE_TIME }] : []),
        { name: 'reason', label: 'Reason', hint: 'Recorded with the decision.' },
      ]}
      confirm={DECISIONS[choice]}
      danger={choice === 'terminate'}
      run={async ({ reason = '', seconds }) => {
        await data(
          POST('/api/escalations/{escalation_id}/decision', {
            params: { path: { escalation_id: escalationId } },
            body: { decision: choice, reason, ...(seconds ? { more_time_seconds: Number(seconds) } : {}), ...session, ...getActor() },
          }),
        )
        showToast(`Decided for ${agentId}: ${DECISIONS[choice].toLowerCase()}.`)
      }}
      onClose={onClose}
    />
  )
}
