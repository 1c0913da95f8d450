import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { data, GET, POST } from '../api/client'
import { callerQuery } from '../api/queries'
import type { AttentionItem } from '../api/schema'
import { useNow } from '../clock'
import { counted, duration, words } from '../format'
import { by } from '../shell/name'
import { useAct } from '../ui/act'
import { Ago, Button, Shape, toneOf } from '../ui/basics'
import { lazyDialog } from '../ui/lazy-dialog'
import { acknowledgeTickets, answerApproval } from '../api/acts'
import { DECISIONS } from './decisions'
import type { Decision } from './decisions'
import { distinct } from './sentences'

const DecideEscalation = lazyDialog(() => import('./worker-dialogs').then((module) => module.DecideEscalation))
const StopWorker = lazyDialog(() => import('./worker-dialogs').then((module) => module.StopWorker))

const KINDS: Record<AttentionItem['kind'], string> = {
  permission: 'asks for permission',
  question: 'asks you',
  approval: 'approval of a stop',
  escalation: 'decision needed',
  ticket: 'ticket',
  incident: 'incident',
}

export function AttentionList({ items, total }: { items: readonly AttentionItem[]; total: number }) {
  if (!items.length)
    return (
      <p className="calm">
        <svg width="22" height="22" viewBox="0 0 22 22" fill="none" stroke="currentColor" strokeWidth="2" aria-hidden="true">
          <circle cx="11" cy="11" r="9.5" />
          <path d="m6.5 11.5 3 3 6-6.5" />
        </svg>
        Nothing needs you.
      </p>
    )
  return (
    <ul className="attention">
      {items.map((item) => (
        <Item key={item.item_id} item={item} />
      ))}
      {total > items.length && <li className="muted">and {counted(total - items.length, 'more item')}</li>}
    </ul>
  )
}

function Item({ item }: { item: AttentionItem }) {
  const mayAct = useQuery(callerQuery).data?.may_act ?? false
  const [lead, rest] = distinct([
    // The queen's words about a ticket begin with its cause.
    ['title', item.ticket_id && item.text ? '' : item.title],
    ['text', item.text],
  ])
  const tone = item.severity ? toneOf(item.severity) : 'queen'
  return (
    <li>
      <span className="mark">
        <Shape tone={tone} />
      </span>
      <div>
        <h3>
          {item.agent_id ? (
            <Link to="/agents/$agentId" params={{ agentId: item.agent_id }} search={{ session: item.session_id }}>
              {item.agent_id}
            </Link>
          ) : (
            <Link to="/incidents/$incidentId" params={{ incidentId: item.item_id }}>{counted(item.workers, 'worker')}</Link>
          )}
          <span className="kind">
            {item.severity ? `${item.severity} ` : ''}
            {KINDS[item.kind]}
            {item.tool ? `: ${item.tool}` : ''}
          </span>
          <span className="muted" style={{ fontWeight: 400 }}>
            <Ago at={item.since} />
          </span>
        </h3>
        {lead && (
          <p>
            {item.kind === 'incident' ? (
              <Link to="/incidents/$incidentId" params={{ incidentId: item.item_id }}>
                {lead[1]}
              </Link>
            ) : item.ticket_id ? (
              <Link to="/tickets/$ticketId" params={{ ticketId: item.ticket_id }}>
                {lead[1]}
              </Link>
            ) : (
              lead[1]
            )}
          </p>
        )}
        {rest && <p className="muted">{rest[1]}</p>}
        {item.deadline && <Deadline at={item.deadline} kind={item.kind} />}
      </div>
      {mayAct ? <Answers item={item} /> : <span className="muted">You may view only.</span>}
    </li>
  )
}

function Deadline({ at, kind }: { at: number; kind: AttentionItem['kind'] }) {
  const left = at - useNow()
  if (left <= 0) return null
  const what = { permission: 'The agent asks in its own terminal', approval: 'Expires', escalation: 'Decided without you' }[kind as string] ?? 'Expires'
  return (
    <p className="muted number">
      {what} in {duration(left)}
    </p>
  )
}

function Answers({ item }: { item: AttentionItem }) {
  const seen = { session_id: item.session_id, incarnation_id: item.incarnation_id }
  const target = { agentId: item.agent_id, ...seen }
  // What is asked about stays what was shown then, whatever takes its place meanwhile.
  const [asked, setAsked] = useState<{ what: 'stop' | 'approve' | Decision; target: typeof target } | null>(null)
  const ask = (what: 'stop' | 'approve' | Decision): void => setAsked({ what, target })
  const permission = useAct(async (decision: 'allow' | 'deny') => {
    await data(POST('/api/permissions/{request_id}/answer', { params: { path: { request_id: item.item_id } }, body: { decision, ...seen, ...by() } }))
    return decision === 'allow' ? `Allowed ${item.tool} for ${item.agent_id}.` : `Denied ${item.tool} for ${item.agent_id}.`
  })
  const approval = useAct((verb: 'approve' | 'deny') => answerApproval(item.item_id, asked?.target ?? target, verb))
  const acknowledge = useAct(async () => {
    if (item.kind === 'incident') {
      const { incidents } = await data(GET('/api/incidents'))
      await acknowledgeTickets(incidents.find((one) => one.incident_id === item.item_id)?.ticket_ids ?? [])
      return `Acknowledged the tickets of ${item.title}.`
    }
    await data(POST('/api/tickets/{ticket_id}/acknowledge', { params: { path: { ticket_id: item.ticket_id } }, body: { via: 'api', ...by() } }))
    return `Acknowledged the ticket of ${item.agent_id}.`
  })
  if (item.kind === 'question') return <Reply key={`${item.incarnation_id} ${item.since}`} item={item} />
  const busy = permission.isPending || approval.isPending || acknowledge.isPending
  return (
    <div className="acts">
      {item.kind === 'permission' && (
        <>
          <Button small look="primary" isDisabled={busy} onPress={() => permission.mutate('allow')}>
            Allow
          </Button>
          <Button small isDisabled={busy} onPress={() => permission.mutate('deny')}>
            Deny
          </Button>
        </>
      )}
      {item.kind === 'approval' && (
        <>
          <Button small look="danger" isDisabled={busy} onPress={() => ask('approve')}>
            Approve stop…
          </Button>
          <Button small isDisabled={busy} onPress={() => approval.mutate('deny')}>
            Deny
          </Button>
        </>
      )}
      {item.kind === 'escalation' &&
        item.options.map((option) => (
          <Button small key={option} look={option === 'terminate' ? 'danger' : 'normal'} onPress={() => ask(option as Decision)}>
            {DECISIONS[option as Decision] ?? words(option)}…
          </Button>
        ))}
      {item.kind === 'ticket' && (
        <>
          {item.options.includes('acknowledge') && (
            <Button small isDisabled={busy} onPress={() => acknowledge.mutate()}>
              Acknowledge
            </Button>
          )}
          {item.options.includes('terminate') && (
            <Button small look="danger" isDisabled={busy} onPress={() => ask('stop')}>
              Stop…
            </Button>
          )}
        </>
      )}
      {item.kind === 'incident' && (
        <>
          {!item.acknowledged && (
            <Button small isDisabled={busy} onPress={() => acknowledge.mutate()}>
              Acknowledge all
            </Button>
          )}
          <Link to="/incidents/$incidentId" params={{ incidentId: item.item_id }} className="button small">
            Open
          </Link>
        </>
      )}
      {(asked?.what === 'stop' || asked?.what === 'approve') && (
        <StopWorker target={asked.target} {...(asked.what === 'approve' ? { run: () => approval.mutateAsync('approve') } : {})} onClose={() => setAsked(null)} />
      )}
      {asked && asked.what !== 'stop' && asked.what !== 'approve' && (
        <DecideEscalation escalationId={item.item_id} target={asked.target} choice={asked.what} onClose={() => setAsked(null)} />
      )}
    </div>
  )
}

function Reply({ item }: { item: AttentionItem }) {
  const [text, setText] = useState('')
  const reply = useAct(async (content: string) => {
    setText('')
    await data(POST('/api/agents/{agent_id}/inject', { params: { path: { agent_id: item.agent_id } }, body: { node_id: item.node_id, content, session_id: item.session_id, incarnation_id: item.incarnation_id } })).catch((error: unknown) => {
      setText((newer) => newer || content)
      throw error
    })
    return `Sent your reply to ${item.agent_id}.`
  })
  if (!item.can_answer) return <span className="muted">Answer it where it runs.</span>
  return (
    <form
      className="reply"
      onSubmit={(event) => {
        event.preventDefault()
        if (text.trim() && !reply.isPending) reply.mutate(text.trim())
      }}
    >
      <input className="input" aria-label={`Reply to ${item.agent_id}`} placeholder="Reply" value={text} onChange={(event) => setText(event.target.value)} />
      <Button small type="submit" look="primary" isDisabled={reply.isPending || !text.trim()}>
        Reply
      </Button>
    </form>
  )
}
