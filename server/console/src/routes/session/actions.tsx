import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { nudgeWorker, showOutcome } from '../../api/worker-actions'
import { data, GET, POST } from '../../api/client'
import { alertmanagerQuery, callerQuery, loadedQuery } from '../../api/queries'
import type { AgentHealth, Ticket } from '../../api/schema'
import { getActor } from '../../shell/user-name'
import { Button, ReadOnly } from '../../ui/basics'
import { lazyDialog } from '../../ui/lazy-dialog'
import { TargetDetails } from '../target-details'

const ConfirmDialog = lazyDialog(() => import('../../ui/dialog').then((module) => module.ConfirmDialog))
const RecoverTask = lazyDialog(() => import('../worker-dialogs').then((module) => module.RecoverTask))
const SilenceTickets = lazyDialog(() => import('../worker-dialogs').then((module) => module.SilenceTickets))
const TerminateWorker = lazyDialog(() => import('../worker-dialogs').then((module) => module.TerminateWorker))

/** Tickets of one session, newest first. */
export function useTickets(worker: AgentHealth) {
  return useQuery({
    queryKey: ['tickets', 'of', worker.agent_id],
    queryFn: () => data(GET('/api/tickets', { params: { query: { agent_id: worker.agent_id, limit: 100 } } })),
    select: (page) => page.tickets.filter((ticket) => ticket.session_id === worker.session_id),
  })
}

export const isOpen = (ticket: Ticket): boolean => ticket.closed_at === null

type Action = 'nudge' | 'escalate' | 'silence' | 'recover' | 'stop'

/** Actions on the worker. Each applies to the shown session and incarnation. */
export function Actions({ worker }: { worker: AgentHealth }) {
  const caller = useQuery(callerQuery).data
  // The dialog keeps its target, even if another worker takes its place.
  const [dialog, setDialog] = useState<{ action: Action; worker: AgentHealth; ticket: Ticket | undefined } | null>(null)
  const ticket = useTickets(worker).data?.find((candidate) => isOpen(candidate) && !candidate.silenced)
  const mayNotify = useQuery(alertmanagerQuery).data
  const ask = (action: Action): void => setDialog({ action, worker, ticket })
  if (!caller) return <div className="session-actions" />
  if (!caller.may_act) return <ReadOnly />
  return (
    <div className="row wraps session-actions" role="group" aria-label="Actions">
      {worker.actions.includes('nudge') && <Button onPress={() => ask('nudge')}>Nudge…</Button>}
      {worker.actions.includes('escalate') && <Button onPress={() => ask('escalate')}>Escalate…</Button>}
      {ticket && mayNotify && <Button onPress={() => ask('silence')}>Silence…</Button>}
      {worker.actions.includes('recover') && <Button onPress={() => ask('recover')}>Recover…</Button>}
      {worker.actions.includes('terminate') && (
        <Button look="danger" onPress={() => ask('stop')}>
          Terminate…
        </Button>
      )}
      {worker.waiting && !worker.ended && !worker.actions.includes('terminate') && <WaitingNotice worker={worker} />}
      {dialog && <ActionDialog {...dialog} onClose={() => setDialog(null)} />}
    </div>
  )
}

/** Why a waiting worker cannot be acted on, and the alternatives. */
function WaitingNotice({ worker }: { worker: AgentHealth }) {
  const isLoaded = useQuery(loadedQuery).data?.loaded.some((slot) => slot.agent_id === worker.agent_id)
  return (
    <span className="muted">
      It waits, so it cannot be nudged or terminated here.{' '}
      {isLoaded && (
        <Link to="/talk" search={{ agent: worker.agent_id, session: worker.session_id }} className="link">
          Answer, pause or unload it
        </Link>
      )}
    </span>
  )
}

function ActionDialog({ action, worker, ticket, onClose }: { action: Action; worker: AgentHealth; ticket: Ticket | undefined; onClose: () => void }) {
  const { agent_id: agentId, session_id, incarnation_id } = worker
  const target = { agentId, session_id, incarnation_id }
  const targetDetails = <TargetDetails {...target} />
  switch (action) {
    case 'nudge':
      return (
        <ConfirmDialog
          title={`Nudge ${agentId}`}
          lead="A hint that the agent reads before its next turn."
          target={targetDetails}
          fields={[{ name: 'message', label: 'Message', multiline: true, hint: 'If empty, Queenright writes it from its findings.' }]}
          confirm="Send"
          run={({ message = '' }) => nudgeWorker({ ...target, message })}
          onClose={onClose}
        />
      )
    case 'escalate':
      return (
        <ConfirmDialog
          title={`Escalate ${agentId}`}
          lead="The orchestrator decides: more time, a hand-off, or a termination."
          target={targetDetails}
          fields={[{ name: 'reason', label: 'Reason', required: true }]}
          confirm="Escalate"
          run={async ({ reason = '' }) => {
            const result = await data(POST('/api/agents/{agent_id}/escalate', { params: { path: { agent_id: agentId } }, body: { reason, session_id, incarnation_id, ...getActor() } }))
            showOutcome(`escalation of ${agentId}`, result)
          }}
          onClose={onClose}
        />
      )
    case 'silence':
      return <SilenceTickets ids={[ticket!.ticket_id]} onClose={onClose} />
    case 'recover':
      return <RecoverTask taskId={worker.task_id} target={{ session_id, incarnation_id }} name={agentId} onClose={onClose} />
    case 'stop':
      return <TerminateWorker target={target} onClose={onClose} />
  }
}
