import { useInfiniteQuery, useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { actorName, answerApproval } from '../../api/worker-actions'
import type { Target } from '../../api/worker-actions'
import { data, GET, PUT } from '../../api/client'
import { attentionQuery, callerQuery, statusQuery } from '../../api/queries'
import type { Acting as ActingState, ActionKind, Approval, Escalation, Intervention, InterventionOutcome } from '../../api/schema'
import { useNow } from '../../clock'
import { count, counted, dateTime, duration, words } from '../../format'
import { getActor } from '../../shell/user-name'
import { showToast, useAction } from '../../ui/toasts'
import { Ago, Button, Loading, Panel, Pill, ReadError, ShowOlder, toneOf } from '../../ui/basics'
import type { Tone } from '../../ui/basics'
import { ConfirmDialog } from '../../ui/dialog'
import { Choice, SearchInput } from '../../ui/filters'
import { DECISIONS } from '../decisions'
import { isBudgetSpent, listLimits } from '../action-groups'
import { Decide } from '../worker-dialogs'
import type { WaitingDecision } from '../worker-dialogs'
import { useFilters } from './filters'

/** Automatic actions: their limits, pending decisions and history. */
export function Actions() {
  const status = useQuery(statusQuery)
  const acting = status.data?.acting
  return (
    <div className="stack">
      {status.error && !acting ? (
        <ReadError error={status.error} retry={() => void status.refetch()} />
      ) : !acting ? (
        <Loading rows={4} />
      ) : (
        <>
          <EmergencyStop acting={acting} />
          <Limits acting={acting} />
        </>
      )}
      <Decisions />
      {acting && acting.ladders.length > 0 && <Ladders acting={acting} />}
      <Interventions />
    </div>
  )
}

function EmergencyStop({ acting }: { acting: ActingState }) {
  const mayAct = useQuery(callerQuery).data?.may_act
  const [asking, setAsking] = useState(false)
  const stop = acting.emergency_stop
  return (
    <section className={`panel switch ${stop.on ? 'on' : ''}`} aria-label="Emergency stop">
      <div className="grow">
        <h2 className="row">
          <Pill tone={stop.on ? 'failing' : acting.dry_run ? 'degraded' : 'healthy'}>{stop.on ? 'stopped' : acting.dry_run ? 'dry run' : 'acting'}</Pill>
          {stop.on ? 'The emergency stop is on' : acting.dry_run ? 'Actions are recorded, not carried out' : 'Queenright acts on workers in trouble'}
        </h2>
        <p className="muted wrap">
          {stop.on ? (
            <>
              Set by {stop.by || 'an unknown user'} <Ago at={stop.changed_at ?? null} />: {stop.reason || 'no reason given'}. No worker is nudged, terminated or recovered; tickets and notifications continue.
            </>
          ) : (
            'The emergency stop ends all nudges, terminations and recoveries at once, automatic or not. Detection and notifications continue.'
          )}
        </p>
      </div>
      {mayAct && (
        <Button look={stop.on ? 'normal' : 'danger'} onPress={() => setAsking(true)}>
          {stop.on ? 'Allow actions again…' : 'Stop all actions…'}
        </Button>
      )}
      {asking && (
        <ConfirmDialog
          title={stop.on ? 'Allow actions again?' : 'Stop all actions?'}
          lead={stop.on ? 'Queenright nudges, terminates and recovers workers again. Actions that became due in the meantime are reconsidered.' : 'No worker is nudged, terminated or recovered until you allow it again.'}
          fields={[{ name: 'reason', label: 'Reason', required: true, hint: 'Recorded in the audit trail.' }]}
          confirm={stop.on ? 'Allow actions' : 'Stop all actions'}
          danger={!stop.on}
          run={async ({ reason = '' }) => {
            const next = await data(PUT('/api/emergency-stop', { body: { on: !stop.on, reason, ...getActor() } }))
            showToast(next.on ? 'All actions are stopped.' : 'Actions are allowed again.')
          }}
          onClose={() => setAsking(false)}
        />
      )}
    </section>
  )
}

function Limits({ acting }: { acting: ActingState }) {
  const now = useNow()
  const { budget, storm } = acting
  const limits = listLimits(acting, now)
  return (
    <div className="tiles-3">
      <section className="panel body" aria-label="Budget of actions">
        <h2>Budget</h2>
        <p className="figure number">
          {budget.used} <span className="muted">of {count(budget.most)} a minute</span>
        </p>
        <meter min={0} max={Math.max(budget.most, 1)} value={budget.used} aria-label="Actions in the last minute" />
        <p className="muted number">{acting.emergency_stop.on ? 'The emergency stop holds all actions.' : isBudgetSpent(budget) && budget.free_at > now ? `The next action may be taken in ${duration(budget.free_at - now)}.` : 'The next action may be taken now.'}</p>
      </section>
      <section className="panel body" aria-label="Storm">
        <h2>Storm</h2>
        <p className="figure">{storm.id ? <span className="tone-failing">{counted(storm.workers, 'worker')}</span> : 'None'}</p>
        <p className="muted">
          {storm.id ? (
            <>
              Since <Ago at={storm.since} />: many workers got worse at once. Queenright does not act on each of them.
            </>
          ) : (
            'Many workers that get worse at once are one incident. Queenright does not act on each of them.'
          )}
        </p>
      </section>
      <section className="panel body" aria-label="Held back">
        <h2>Held back</h2>
        {limits.length ? (
          <ul className="stack" style={{ gap: 4 }}>
            {limits.map((limit) => (
              <li key={limit} className="wrap">
                {limit}
              </li>
            ))}
          </ul>
        ) : (
          <>
            <p className="figure">{acting.emergency_stop.on ? 'Everything' : 'Nothing'}</p>
            <p className="muted">{acting.emergency_stop.on ? 'By the emergency stop.' : 'No limit holds actions back.'}</p>
          </>
        )}
      </section>
    </div>
  )
}

function Decisions() {
  const approvals = useQuery({ queryKey: ['acting', 'approvals'], queryFn: () => data(GET('/api/approvals', { params: { query: { open: true, limit: 50 } } })) })
  const escalations = useQuery({ queryKey: ['acting', 'escalations'], queryFn: () => data(GET('/api/escalations', { params: { query: { open: true, limit: 50 } } })) })
  const error = approvals.error ?? escalations.error
  const [dialog, setDialog] = useState<{ decision: WaitingDecision; target: Target; why: string } | null>(null)
  const waiting = [...(approvals.data?.approvals.filter((approval) => approval.status === 'requested').map((approval) => approval.approval_id) ?? []), ...(escalations.data?.escalations.map((escalation) => escalation.escalation_id) ?? [])]
  const total = (approvals.data?.approvals.length ?? 0) + (escalations.data?.escalations.length ?? 0)
  return (
    <Panel title={total ? `Decisions (${total})` : 'Decisions'}>
      {error && <ReadError error={error} retry={() => (void approvals.refetch(), void escalations.refetch())} />}
      {!approvals.data || !escalations.data ? (
        !error && <Loading rows={2} />
      ) : (
        <ul className="entries">
          {approvals.data.approvals.map((approval) => (
            <ApprovalItem key={approval.approval_id} approval={approval} ask={(decision, target, why) => setDialog({ decision, target, why })} />
          ))}
          {escalations.data.escalations.map((escalation) => (
            <EscalationItem key={escalation.escalation_id} escalation={escalation} ask={(decision, target, why) => setDialog({ decision, target, why })} />
          ))}
          {total === 0 && <li className="muted">No approval or escalation is waiting for a decision.</li>}
        </ul>
      )}
      {dialog && <Decide {...dialog} isOpen={waiting.includes(dialog.decision.id)} onClose={() => setDialog(null)} />}
    </Panel>
  )
}

function TimeLeft({ until, text }: { until: number; text: string }) {
  const seconds = until - useNow()
  return <span className="muted number">{seconds > 0 ? `${text} in ${duration(seconds)}` : 'Expired.'}</span>
}

function Worker({ agentId, sessionId }: { agentId: string; sessionId: string }) {
  return (
    <Link className="link wrap" to="/agents/$agentId" params={{ agentId }} search={{ session: sessionId }}>
      {agentId}
    </Link>
  )
}

type AskDecision = (decision: WaitingDecision, target: Target, why: string) => void

/** The reason for a decision, with the current findings. `reason` is the original one. */
const useReason = (id: string, reason: string): string => useQuery(attentionQuery).data?.items.find((item) => item.item_id === id)?.text || reason

function ApprovalItem({ approval, ask }: { approval: Approval; ask: AskDecision }) {
  const why = useReason(approval.approval_id, approval.reason)
  const mayAct = useQuery(callerQuery).data?.may_act
  const target = { agentId: approval.agent_id, session_id: approval.session_id, incarnation_id: approval.incarnation_id }
  const deny = useAction(() => answerApproval(approval.approval_id, target, 'deny'))
  return (
    <li>
      <div className="grow">
        <p>
          Terminate <Worker agentId={approval.agent_id} sessionId={approval.session_id} />, asked by the {approval.asked_by} <Ago at={approval.created_at} />
        </p>
        <p className="wrap lines">{why}</p>
        <p className="row wraps">
          <TimeLeft until={approval.expires_at} text="Expires" />
          {approval.ticket_id && (
            <Link className="link muted" to="/tickets/$ticketId" params={{ ticketId: approval.ticket_id }}>
              Ticket
            </Link>
          )}
        </p>
      </div>
      {mayAct && (
        <div className="row wraps">
          <Button small look="danger" isDisabled={deny.isPending} onPress={() => ask({ kind: 'approval', id: approval.approval_id }, target, why)} aria-label={`Approve termination of ${approval.agent_id}…`}>
            Approve termination…
          </Button>
          <Button small isDisabled={deny.isPending} onPress={() => deny.mutate()} aria-label={`Deny termination of ${approval.agent_id}`}>
            Deny
          </Button>
        </div>
      )}
    </li>
  )
}

function EscalationItem({ escalation, ask }: { escalation: Escalation; ask: AskDecision }) {
  const why = useReason(escalation.escalation_id, escalation.reason)
  const mayAct = useQuery(callerQuery).data?.may_act
  const { agent_id, session_id, incarnation_id } = escalation
  return (
    <li>
      <div className="grow">
        <p>
          Decide about <Worker agentId={agent_id} sessionId={session_id} />, escalated <Ago at={escalation.created_at} />
        </p>
        <p className="wrap lines">{why}</p>
        <TimeLeft until={escalation.deadline} text="It is terminated without a decision" />
      </div>
      {mayAct && (
        <div className="row wraps">
          {escalation.options.map((option) => (
            <Button key={option} small look={option === 'terminate' ? 'danger' : 'normal'} onPress={() => ask({ kind: 'escalation', id: escalation.escalation_id, choice: option }, { agentId: agent_id, session_id, incarnation_id }, why)} aria-label={`${DECISIONS[option]}: ${agent_id}`}>
              {DECISIONS[option]}…
            </Button>
          ))}
        </div>
      )}
    </li>
  )
}

function Ladders({ acting }: { acting: ActingState }) {
  const now = useNow()
  return (
    <Panel title="Workers being acted on">
      <ul className="entries">
        {acting.ladders.map((ladder) => (
          <li key={`${ladder.agent_id}/${ladder.session_id}`}>
            <div className="grow">
              <p className="row wraps">
                <Pill tone={ladder.level === 'human' ? 'failing' : 'degraded'}>{ladder.level === 'human' ? 'needs a person' : 'automatic'}</Pill>
                <Worker agentId={ladder.agent_id} sessionId={ladder.session_id} />
                {ladder.trouble_since ? <span className="muted number">in trouble for {duration(now - ladder.trouble_since)}</span> : null}
              </p>
              <p className="wrap">
                {ladder.level === 'human' ? '' : `${ladder.what}. `}
                {ladder.next ? `Next: ${ladder.next}` : ladder.level === 'human' ? 'Waits for a person.' : 'No next step.'}
                {ladder.next_at && ladder.next_at > now ? <span className="number"> in {duration(ladder.next_at - now)}</span> : null}
              </p>
            </div>
            <span className="when muted">
              <Ago at={ladder.acted_at ?? null} />
            </span>
          </li>
        ))}
        {acting.ladders_more > 0 && <li className="muted">and {counted(acting.ladders_more, 'more worker')}</li>}
      </ul>
    </Panel>
  )
}

const KINDS: readonly ActionKind[] = ['nudge', 'escalate', 'terminate', 'recover', 'answer']
const OUTCOMES: readonly InterventionOutcome[] = ['done', 'started', 'queued', 'unreachable', 'unconfirmed', 'refused', 'failed', 'expired', 'dry_run']
const OUTCOME_TONES: Partial<Record<InterventionOutcome, Tone>> = { unreachable: 'stuck', unconfirmed: 'degraded', expired: 'degraded', started: 'queen', queued: 'queen' }

function Interventions() {
  const [{ agent = '', type = '', state = '' }, change] = useFilters()
  const result = useInfiniteQuery({
    queryKey: ['acting', 'interventions', agent, type, state],
    queryFn: ({ pageParam }) =>
      data(
        GET('/api/interventions', {
          params: {
            query: {
              limit: 50,
              ...(agent ? { agent_id: agent } : {}),
              ...(type ? { kind: type as ActionKind } : {}),
              ...(state ? { outcome: state as InterventionOutcome } : {}),
              ...(pageParam ? { cursor: pageParam } : {}),
            },
          },
        }),
      ),
    initialPageParam: '',
    getNextPageParam: (last) => last.next ?? undefined,
    placeholderData: (before) => before,
  })
  const rows = result.data?.pages.flatMap((page) => page.interventions)
  const isFiltered = Boolean(agent || type || state)
  return (
    <Panel title="Interventions">
      <div className="fleet-tools" role="group" aria-label="Filters of interventions">
        <SearchInput label="Agent" value={agent} onChange={(next) => change({ agent: next.trim() })} suggestions={[...new Set(rows?.map((row) => row.agent_id))]} />
        <Choice label="Kind" value={type} options={KINDS} onChange={(next) => change({ type: next })} />
        <Choice label="Outcome" value={state} options={OUTCOMES.map((name) => [name, words(name)])} onChange={(next) => change({ state: next })} />
      </div>
      {result.error && !rows ? (
        <ReadError error={result.error} retry={() => void result.refetch()} />
      ) : !rows ? (
        <Loading rows={5} />
      ) : rows.length === 0 ? (
        <p className="body muted">{isFiltered ? 'No intervention matches these filters.' : 'None yet. Nudges, escalations, terminations, recoveries and answers are listed here.'}</p>
      ) : (
        <ul className="entries">
          {rows.map((row) => (
            <InterventionItem key={row.intervention_id} row={row} />
          ))}
        </ul>
      )}
      <ShowOlder list={result} />
    </Panel>
  )
}

function InterventionItem({ row }: { row: Intervention }) {
  return (
    <li>
      <div className="grow">
        <p className="row wraps">
          <Pill tone={OUTCOME_TONES[row.outcome] ?? toneOf(row.outcome)}>{words(row.outcome)}</Pill>
          <strong>{row.kind}</strong> <Worker agentId={row.agent_id} sessionId={row.session_id} />
          <span className="muted">
            {actorName(row.by)}
            {row.attempt > 1 && `, attempt ${row.attempt}`}
          </span>
        </p>
        <p className="wrap">{row.reason}</p>
        {row.message && row.message !== row.reason && (
          <details className="muted">
            <summary>Message</summary>
            <p className="wrap lines">{row.message}</p>
          </details>
        )}
        {row.detail && <p className="wrap muted">{row.detail}</p>}
      </div>
      <span className="when muted" title={dateTime(row.created_at)}>
        <Ago at={row.created_at} />
      </span>
    </li>
  )
}
