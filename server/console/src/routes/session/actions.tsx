import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { nudgeWorker, sayOutcome } from '../../api/acts'
import { data, GET, POST } from '../../api/client'
import { alertmanagerQuery, callerQuery, loadedQuery } from '../../api/queries'
import type { AgentHealth, Ticket } from '../../api/schema'
import { by } from '../../shell/name'
import { Button, ReadOnly } from '../../ui/basics'
import { lazyDialog } from '../../ui/lazy-dialog'
import { Seen } from '../seen'

const Ask = lazyDialog(() => import('../../ui/dialog').then((module) => module.Ask))
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

/** What a person can do to the worker. Each names the session and incarnation that are shown. */
export function Actions({ worker }: { worker: AgentHealth }) {
  const caller = useQuery(callerQuery).data
  // What is asked about stays what was shown then, whatever takes its place meanwhile.
  const [asked, setAsked] = useState<{ action: Action; worker: AgentHealth; ticket: Ticket | undefined } | null>(null)
  const ticket = useTickets(worker).data?.find((one) => isOpen(one) && !one.silenced)
  const mayNotify = useQuery(alertmanagerQuery).data
  const ask = (action: Action): void => setAsked({ action, worker, ticket })
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
      {worker.waiting && !worker.ended && !worker.actions.includes('terminate') && <Waits worker={worker} />}
      {asked && <Question {...asked} onClose={() => setAsked(null)} />}
    </div>
  )
}

/** Why a worker that waits is not acted on, and what can be done instead. */
function Waits({ worker }: { worker: AgentHealth }) {
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

function Question({ action, worker, ticket, onClose }: { action: Action; worker: AgentHealth; ticket: Ticket | undefined; onClose: () => void }) {
  const { agent_id: agentId, session_id, incarnation_id } = worker
  const target = { agentId, session_id, incarnation_id }
  const seen = <Seen {...target} />
  switch (action) {
    case 'nudge':
      return (
        <Ask
          title={`Nudge ${agentId}`}
          lead="A hint that the agent reads before its next turn."
          target={seen}
          fields={[{ name: 'message', label: 'Message', multiline: true, hint: 'Empty: Queenright writes it from its findings.' }]}
          confirm="Send"
          run={({ message = '' }) => nudgeWorker({ ...target, message })}
          onClose={onClose}
        />
      )
    case 'escalate':
      return (
        <Ask
          title={`Escalate ${agentId}`}
          lead="The orchestrator decides: more time, a hand-off, or a termination."
          target={seen}
          fields={[{ name: 'reason', label: 'Reason', required: true }]}
          confirm="Escalate"
          run={async ({ reason = '' }) => {
            const result = await data(POST('/api/agents/{agent_id}/escalate', { params: { path: { agent_id: agentId } }, body: { reason, session_id, incarnation_id, ...by() } }))
            sayOutcome(`escalation of ${agentId}`, result)
          }}
          onClose={onClose}
        />
      )
    case 'silence':
      return <SilenceTickets ids={[ticket!.ticket_id]} onClose={onClose} />
    case 'recover':
      return <RecoverTask taskId={worker.task_id} seen={{ session_id, incarnation_id }} name={agentId} onClose={onClose} />
    case 'stop':
      return <TerminateWorker target={target} onClose={onClose} />
  }
}
