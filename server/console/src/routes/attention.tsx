import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useEffect, useRef, useState } from 'react'
import { data, GET, POST } from '../api/client'
import { callerQuery } from '../api/queries'
import type { AttentionItem, AttentionList } from '../api/schema'
import { useNow } from '../clock'
import { count, counted, duration, names, words } from '../format'
import { getActor } from '../shell/user-name'
import { useAction } from '../ui/toasts'
import { Ago, Button, Clamped, Panel, ReadOnly, Shape, toneOf } from '../ui/basics'
import { lazyDialog } from '../ui/lazy-dialog'
import { PHONE, useMatches } from '../ui/media'
import { acknowledgeTickets, answerApproval } from '../api/worker-actions'
import type { Target } from '../api/worker-actions'
import { DECISIONS } from './decisions'
import type { Decision } from './decisions'
import { removeRepetitions } from './repetitions'

const Decide = lazyDialog(() => import('./worker-dialogs').then((module) => module.Decide))
const TerminateWorker = lazyDialog(() => import('./worker-dialogs').then((module) => module.TerminateWorker))

const KINDS: Record<AttentionItem['kind'], string> = {
  permission: 'asks for permission',
  question: 'asks you',
  approval: 'termination needs your approval',
  escalation: 'decision needed',
  ticket: 'ticket',
  incident: 'incident',
}

/** `high ticket`, `decision needed, high`. */
function describeKind({ kind, severity }: AttentionItem): string {
  if (!severity) return KINDS[kind]
  return kind === 'ticket' || kind === 'incident' ? `${severity} ${KINDS[kind]}` : `${KINDS[kind]}, ${severity}`
}

/** The item of an open dialog. It does not change, even if another item takes its place. */
interface OpenDialog {
  item: AttentionItem
  what: 'stop' | 'approve' | Decision
}

/** A draft of a reply. */
interface Draft {
  item: AttentionItem
  text: string
}

/** The key of an item; for a waiting agent, it includes the question. */
const itemKey = ({ item_id, kind, incarnation_id, question_id, since }: AttentionItem): string => (kind === 'question' ? `${item_id} ${incarnation_id} ${question_id || since}` : item_id)

/** Items that need a person, with actions. With `isOnly`, the panel is shown even if the list is empty. */
export function NeedsYou({ list: { items, total }, isOnly = false }: { list: AttentionList; isOnly?: boolean }) {
  const [dialog, setDialog] = useState<OpenDialog | null>(null)
  const [drafts, setDrafts] = useState<readonly Draft[]>([])
  const write = (item: AttentionItem, text: string): void => {
    setDrafts((before) => [...before.filter((draft) => itemKey(draft.item) !== itemKey(item)), ...(text ? [{ item, text }] : [])])
  }
  const open = new Set(items.map(itemKey))
  // Keep the draft of a reply, with a notice, when its question is no longer open.
  const orphanedDrafts = drafts.filter((draft) => !open.has(itemKey(draft.item)))
  const findText = (item: AttentionItem): string => drafts.find((draft) => itemKey(draft.item) === itemKey(item))?.text ?? ''
  const [listedItems, heldItems, showHeld] = useHeldItems(items)
  const mayAct = useQuery(callerQuery).data?.may_act
  const list = useRef<HTMLUListElement>(null)
  const hasFocus = useRef(false)
  const itemIds = items.map((item) => item.item_id).join()
  // The focused item is gone. Continue from the list, not from the start of the page.
  useEffect(() => {
    if (hasFocus.current && document.activeElement === document.body) list.current?.focus({ preventScroll: true })
  }, [itemIds])
  return (
    <>
      {(isOnly || total > 0 || orphanedDrafts.length > 0) && (
        <Panel
          title={total ? `Needs you (${count(total)})` : 'Needs you'}
          aside={
            <>
              {mayAct === false && total > 0 && <ReadOnly />}
              {heldItems.length > 0 && (
                <Button
                  small
                  look="primary"
                  onPress={() => {
                    showHeld()
                    list.current?.focus({ preventScroll: true })
                  }}
                >
                  Show {count(heldItems.length)} new
                </Button>
              )}
            </>
          }
        >
          <ul
            className="attention"
            aria-label="Needs you"
            ref={list}
            tabIndex={-1}
            onFocus={() => (hasFocus.current = true)}
            onBlur={({ target, relatedTarget }) => {
              // A removed or disabled element loses the focus.
              if (relatedTarget || (target.isConnected && !target.matches(':disabled'))) hasFocus.current = false
            }}
          >
            {[...listedItems, ...orphanedDrafts.map((draft) => draft.item)].map((item) => (
              <Item key={itemKey(item)} item={item} mayAct={mayAct} isOpen={open.has(itemKey(item))} draft={findText(item)} write={(text) => write(item, text)} ask={(what) => setDialog({ item, what })} />
            ))}
            {total > items.length && <li className="muted">and {counted(total - items.length, 'more item')}</li>}
            {heldItems.length > 0 && !listedItems.length && !orphanedDrafts.length && (
              <li className="calm">
                <span className="clip">{heldItems.map((item) => listAgents(item)).join(', ')}</span>
              </li>
            )}
            {!total && !orphanedDrafts.length && (
              <li className="calm">
                <svg width="22" height="22" viewBox="0 0 22 22" fill="none" stroke="currentColor" strokeWidth="2" aria-hidden="true">
                  <circle cx="11" cy="11" r="9.5" />
                  <path d="m6.5 11.5 3 3 6-6.5" />
                </svg>
                Nothing needs you.
              </li>
            )}
          </ul>
        </Panel>
      )}
      {dialog && <Dialog {...dialog} isOpen={items.some((item) => item.item_id === dialog.item.item_id)} onClose={() => setDialog(null)} />}
    </>
  )
}

/**
 * Return the listed items, the held-back items, and a function that lists them. On a phone, new items would move the
 * whole page, including the button under a finger, so they are listed on request.
 */
function useHeldItems(items: readonly AttentionItem[]): [listed: readonly AttentionItem[], heldItems: readonly AttentionItem[], show: () => void] {
  const isPhone = useMatches(PHONE)
  const [knownKeys, setKnownKeys] = useState(() => new Set(items.map(itemKey)))
  const heldItems = isPhone ? items.filter((item) => !knownKeys.has(itemKey(item))) : []
  const show = (): void => setKnownKeys(new Set(items.map(itemKey)))
  // Items that a wide screen lists stay when the screen becomes narrow.
  if (!isPhone && items.some((item) => !knownKeys.has(itemKey(item)))) show()
  return [items.filter((item) => !heldItems.includes(item)), heldItems, show]
}

const listAgents = ({ agents, agents_more }: AttentionItem): string => names(agents, agents_more)

const toTarget = ({ agent_id, session_id, incarnation_id }: AttentionItem): Target => ({ agentId: agent_id, session_id, incarnation_id })

function Dialog({ item, what, isOpen, onClose }: OpenDialog & { isOpen: boolean; onClose: () => void }) {
  const target = toTarget(item)
  if (what === 'stop') return <TerminateWorker target={target} onClose={onClose} />
  return <Decide decision={what === 'approve' ? { kind: 'approval', id: item.item_id } : { kind: 'escalation', id: item.item_id, choice: what }} target={target} why={item.text} isOpen={isOpen} onClose={onClose} />
}

interface ItemProps {
  item: AttentionItem
  /** Undefined while unknown. */
  mayAct: boolean | undefined
  isOpen: boolean
  draft: string
  write: (text: string) => void
  ask: (what: OpenDialog['what']) => void
}

function Item({ item, mayAct, isOpen, draft, write, ask }: ItemProps) {
  // The page of a ticket has the queen's text, with the commands that she suggests.
  const [lead, rest] = removeRepetitions([
    ['title', item.title],
    ['text', item.kind === 'ticket' ? '' : item.text],
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
              {listAgents(item)}
            </Link>
          ) : (
            <Link to="/incidents/$incidentId" params={{ incidentId: item.item_id }} title={counted(item.workers, 'worker')}>
              {listAgents(item)}
            </Link>
          )}
          <span className="kind">
            {isOpen ? describeKind(item) : 'asked you'}
            {item.tool ? `: ${item.tool}` : ''}
          </span>
          <span className="muted" style={{ fontWeight: 400 }}>
            <Ago at={item.since} />
          </span>
        </h3>
        {lead && (
          <p>
            <Clamped text={lead[1]}>
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
            </Clamped>
          </p>
        )}
        {rest && (
          <p className="muted">
            <Clamped text={rest[1]} />
          </p>
        )}
        {item.deadline && <Deadline at={item.deadline} kind={item.kind} />}
      </div>
      {mayAct === undefined ? <span /> : !mayAct ? null : item.kind === 'question' ? <Reply item={item} isOpen={isOpen} text={draft} write={write} /> : <Answers item={item} ask={ask} />}
    </li>
  )
}

function Deadline({ at, kind }: { at: number; kind: AttentionItem['kind'] }) {
  const seconds = at - useNow()
  if (seconds <= 0) return null
  const event = { permission: 'The agent asks in its own terminal', approval: 'Expires', escalation: 'Decided without you' }[kind as string] ?? 'Expires'
  return (
    <p className="muted number">
      {event} in {duration(seconds)}
    </p>
  )
}

function Answers({ item, ask }: { item: AttentionItem; ask: (what: OpenDialog['what']) => void }) {
  const target = { session_id: item.session_id, incarnation_id: item.incarnation_id }
  const permission = useAction(async (decision: 'allow' | 'deny') => {
    await data(POST('/api/permissions/{request_id}/answer', { params: { path: { request_id: item.item_id } }, body: { decision, ...target, ...getActor() } }))
    return decision === 'allow' ? `Allowed ${item.tool} for ${item.agent_id}.` : `Denied ${item.tool} for ${item.agent_id}.`
  })
  const deny = useAction(() => answerApproval(item.item_id, toTarget(item), 'deny'))
  const acknowledge = useAction(async () => {
    if (item.kind === 'incident') {
      const { incidents } = await data(GET('/api/incidents'))
      await acknowledgeTickets(incidents.find((incident) => incident.incident_id === item.item_id)?.ticket_ids ?? [])
      return `Acknowledged the tickets of ${item.title}.`
    }
    await data(POST('/api/tickets/{ticket_id}/acknowledge', { params: { path: { ticket_id: item.ticket_id } }, body: { via: 'api', ...getActor() } }))
    return `Acknowledged the ticket of ${item.agent_id}.`
  })
  const busy = permission.isPending || deny.isPending || acknowledge.isPending
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
            Approve termination…
          </Button>
          <Button small isDisabled={busy} onPress={() => deny.mutate()}>
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
              Terminate…
            </Button>
          )}
        </>
      )}
      {item.kind === 'incident' && (
        <>
          {item.options.includes('acknowledge') && (
            <Button small isDisabled={busy} onPress={() => acknowledge.mutate()}>
              Acknowledge all
            </Button>
          )}
          <Link to="/incidents/$incidentId" params={{ incidentId: item.item_id }} className="button small">
            Open
          </Link>
        </>
      )}
    </div>
  )
}

function Reply({ item, isOpen, text, write }: Omit<ItemProps, 'ask' | 'draft' | 'mayAct'> & { text: string }) {
  const input = useRef<HTMLInputElement>(null)
  const reply = useAction(async (content: string) => {
    write('')
    input.current?.focus()
    await data(POST('/api/agents/{agent_id}/inject', { params: { path: { agent_id: item.agent_id } }, body: { node_id: item.node_id, content, session_id: item.session_id, question_id: item.question_id || null, incarnation_id: item.incarnation_id } })).catch((error: unknown) => {
      write(input.current?.value || content)
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
        if (isOpen && text.trim() && !reply.isPending) reply.mutate(text.trim())
      }}
    >
      <input ref={input} className="input" aria-label={`Reply to ${item.agent_id}`} placeholder="Reply" value={text} readOnly={!isOpen} onChange={(event) => write(event.target.value)} />
      {isOpen ? (
        <Button small type="submit" look="primary" isDisabled={reply.isPending || !text.trim()}>
          Reply
        </Button>
      ) : (
        <>
          <Button small onPress={() => write('')}>
            Discard
          </Button>
          <p role="status">The question is no longer open: it was answered elsewhere, or the run ended. Your reply was not sent.</p>
        </>
      )}
    </form>
  )
}
