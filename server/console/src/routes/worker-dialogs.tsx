import { useQuery, useQueryClient } from '@tanstack/react-query'
import { answerApproval, terminateWorker } from '../api/acts'
import type { Target } from '../api/acts'
import { data, GET, POST, RequestError } from '../api/client'
import { duration, words } from '../format'
import { by } from '../shell/name'
import { say } from '../ui/act'
import { Clamped } from '../ui/basics'
import { Ask } from '../ui/dialog'
import { Seen } from './seen'
import { DECISIONS } from './decisions'
import type { Decision } from './decisions'
import { secondsOf } from './silence'

// Dialogs that several pages have. They load with the first one that is opened.

/** Ask before a worker is terminated; without a reason, `approve` terminates it. `why`: the reason that it was asked for. */
export function TerminateWorker({ target, why, settled, approve, onClose }: { target: Target; why?: string; settled?: string; approve?: () => Promise<unknown>; onClose: () => void }) {
  return (
    <Ask
      title={`Terminate ${target.agentId}?`}
      lead="The agent is told to stop; its last checkpoint is kept."
      target={<><Why text={why} /><Seen {...target} /></>}
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

/** Ask for how long tickets are silenced, and why. */
export function SilenceTickets({ ids, settled, onClose }: { ids: readonly string[]; settled?: string; onClose: () => void }) {
  const queries = useQueryClient()
  return (
    <Ask
      title={ids.length === 1 ? 'Silence this ticket' : `Silence ${ids.length} tickets`}
      lead="No notification is sent, nor of other tickets of the worker with this cause. Silenced tickets stay open; if you work on them, acknowledge them instead."
      fields={[
        { name: 'seconds', label: 'For', value: '7200', options: DURATIONS },
        { name: 'other', label: 'Another duration', hint: 'Such as 90m, 3h or 2d; instead of the choice above.' },
        { name: 'comment', label: 'Why', required: true, hint: 'Shown in Alertmanager.' },
      ]}
      confirm="Silence"
      settled={settled}
      run={async ({ seconds: chosen, other, comment = '' }) => {
        const seconds = other ? secondsOf(other) : Number(chosen)
        let refused: RequestError | undefined
        let silenced = 0
        try {
          for (const ticket_id of ids)
            try {
              await data(POST('/api/silences', { body: { ticket_id, seconds, comment, ...by() } }))
              silenced++
            } catch (error) {
              // One that is closed or that nobody was notified of; the others are silenced.
              if (!(error instanceof RequestError && error.status === 409)) throw error
              refused = error
            }
        } finally {
          // A silence has no event.
          void queries.invalidateQueries({ queryKey: ['tickets'] })
        }
        if (refused && !silenced) throw refused
        say(`Silenced ${ids.length === 1 ? '' : `${silenced} of ${ids.length} tickets `}for ${duration(seconds)}.`)
      }}
      onClose={onClose}
    />
  )
}

/**
 * Ask how a task is recovered.
 *
 * @param taskId The task; empty: it is asked for.
 * @param seen Its worker, as the page shows it.
 * @param name What the result is said of; by default the task.
 */
export function RecoverTask({ taskId, seen, name, onClose }: { taskId: string; seen?: { session_id: string; incarnation_id: string }; name?: string; onClose: () => void }) {
  return (
    <Ask
      title={taskId ? `Recover ${name ?? taskId}?` : 'Recover a task'}
      lead="Its worker is started again, unless the task is finished or still runs."
      target={taskId && <p className="mono muted wrap" style={{ fontSize: 12 }}>Task {taskId}</p>}
      fields={[
        ...(taskId ? [] : [{ name: 'task_id', label: 'Task', required: true, hint: 'A task id, or the id of a session.' }]),
        { name: 'start', label: 'From', options: [{ value: '', label: 'Its last valid checkpoint' }, { value: 'start', label: 'The start, if there is no checkpoint: what it did is done again' }] },
        { name: 'reviewed', label: 'Attempts', options: [{ value: '', label: 'Within the limit' }, { value: 'yes', label: 'One more: I reviewed the failure' }] },
      ]}
      confirm="Recover"
      run={async ({ task_id = taskId, start, reviewed }) => {
        const result = await data(POST('/api/recoveries', { body: { task_id, from_start: start === 'start', reviewed: reviewed === 'yes', ...seen, ...by() } }))
        if (!result.accepted) throw new Error(result.reason || 'The recovery was not accepted.')
        say(`Recovery of ${name ?? task_id}: attempt ${result.attempt}. ${result.reason}`.trim())
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

/** A decision that waits for a person. */
export type WaitingDecision = { id: string } & ({ kind: 'approval' } | { kind: 'escalation'; choice: Decision })

/** Why a decision is asked for, on lines of its own. */
const Why = ({ text }: { text: string | undefined }) => text && <p className="wrap lines"><Clamped text={text} /></p>

/** Ask before a decision. `isOpen`: it still waits; otherwise the dialog says how it was decided. `why`: it is asked for. */
export function Decide({ decision, target, why, isOpen, onClose }: { decision: WaitingDecision; target: Target; why: string; isOpen: boolean; onClose: () => void }) {
  const outcome = useQuery({
    queryKey: ['acting', decision.kind, decision.id],
    queryFn: () => (decision.kind === 'approval' ? outcomeOfApproval(decision.id) : outcomeOfEscalation(decision.id)),
    enabled: !isOpen,
  })
  const settled = isOpen ? '' : (outcome.data ?? 'It no longer waits for a decision.')
  if (decision.kind === 'escalation') return <DecideEscalation escalationId={decision.id} choice={decision.choice} target={target} why={why} settled={settled} onClose={onClose} />
  return <TerminateWorker target={target} why={why} settled={settled} approve={async () => say(await answerApproval(decision.id, target, 'approve'))} onClose={onClose} />
}

async function outcomeOfApproval(id: string): Promise<string> {
  const { approvals } = await data(GET('/api/approvals', { params: { query: { limit: NEWEST } } }))
  const found = approvals.find((one) => one.approval_id === id)
  return outcomeText(found?.status ?? 'decided', found?.decided_by)
}

async function outcomeOfEscalation(id: string): Promise<string> {
  const { escalations } = await data(GET('/api/escalations', { params: { query: { limit: NEWEST } } }))
  const found = escalations.find((one) => one.escalation_id === id)
  const decision = found?.decision as Decision | '' | null | undefined
  return outcomeText(decision ? `decided (${DECISIONS[decision].toLowerCase()})` : (found?.status ?? 'decided'), found?.decided_by)
}

const NEWEST = 200

const outcomeText = (status: string, by: string | null | undefined): string => `Meanwhile it was ${status === 'void' ? 'withdrawn' : words(status)}${by ? ` by ${by}` : ''}. Nothing was sent from here.`

function DecideEscalation({ escalationId, target, choice, why, settled, onClose }: { escalationId: string; target: Target; choice: Decision; why: string; settled: string; onClose: () => void }) {
  const { agentId, ...seen } = target
  return (
    <Ask
      title={`${DECISIONS[choice]}: ${agentId}?`}
      target={<><Why text={why} /><Seen {...target} /></>}
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
            body: { decision: choice, reason, ...(seconds ? { more_time_seconds: Number(seconds) } : {}), ...seen, ...by() },
          }),
        )
        say(`Decided for ${agentId}: ${DECISIONS[choice].toLowerCase()}.`)
      }}
      onClose={onClose}
    />
  )
}
