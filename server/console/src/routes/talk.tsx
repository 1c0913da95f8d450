import { useTitle } from '../shell/title'
import './talk.css'
import { queryOptions, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { Fragment, useEffect, useRef, useState } from 'react'
import { data, DELETE, GET, POST } from '../api/client'
import { sessionQuery } from '../api/loaded'
import { attentionOfQuery, callerQuery } from '../api/queries'
import type { AgentSlot, DiscoveredAgent, EntryPoint, MessageRow } from '../api/schema'
import { counted, dateTime, money, words } from '../format'
import { showToast, useAction } from '../ui/toasts'
import { Ago, Button, Copyable, Empty, Loading, Panel, Pill, ReadError, toneOf } from '../ui/basics'
import { ConfirmDialog } from '../ui/dialog'
import { Graph } from './graph'
import { createFields, readInput } from './input-form'
import { listQuestionCalls, readQuestion } from './questions'
import { QueenChat, sendOnEnter } from './queen'

/** Conversations with the agents that are loaded in the service, and with the queen about a ticket. */
export function TalkPage() {
  const { agent = '', session: requestedSession = '', ticket, graph = '' } = useSearch({ from: '/talk' })
  const loaded = useQuery({ queryKey: ['loaded'], queryFn: () => data(GET('/api/agents', { params: { query: { limit: 1 } } })) })
  const slots = loaded.data?.loaded ?? []
  const slot = slots.find((candidate) => candidate.agent_id === agent) ?? (agent ? undefined : slots[0])
  // Without an agent in the URL, show an active conversation first.
  const isFirstLook = !agent && !requestedSession
  const sessions = useQuery({ ...sessionsQuery(slot?.agent_id ?? ''), enabled: isFirstLook && slot !== undefined })
  const session = requestedSession || (isFirstLook && sessions.data?.sessions.find((row) => row.status === 'active')?.session_id) || ''
  useTitle(agent ? `Talk with ${agent}` : 'Talk')
  return (
    <>
      <div className="page-head">
        <h1>Talk</h1>
      </div>
      <div className="talk">
        <Panel title="Loaded agents" aside={<LoadAgent />}>
          {loaded.error ? (
            <ReadError error={loaded.error} retry={() => void loaded.refetch()} />
          ) : !loaded.data ? (
            <Loading />
          ) : (
            <ul className="list">
              {slots.map((candidate) => (
                <li key={candidate.agent_id}>
                  <Link to="/talk" search={{ agent: candidate.agent_id }} aria-current={candidate === slot ? 'true' : undefined}>
                    <strong className="wrap">{candidate.agent_id}</strong>
                    <small className="clip" title={candidate.description}>
                      {candidate.description || candidate.goal}
                    </small>
                  </Link>
                </li>
              ))}
              {slots.length === 0 && <li className="item muted">No agent is loaded in the service.</li>}
            </ul>
          )}
        </Panel>
        {slot ? (
          <>
            <div className="stack">
              <Conversation key={`${slot.agent_id}/${session}`} slot={slot} session={session} graph={graph || slot.active_graph_id} />
              <Panel title={graphTitle(slot, graph)} aside={<GraphChoice slot={slot} graph={graph || slot.active_graph_id} />}>
                <Graph agentId={slot.agent_id} graphId={graph || slot.active_graph_id} session={session} />
              </Panel>
            </div>
            <div className="stack third">
              <Start slot={slot} graph={graph || slot.active_graph_id} />
              <Sessions slot={slot} session={session} />
              {session && <Checkpoints slot={slot} session={session} />}
              {ticket && <QueenChat key={ticket} about={{ ticketId: ticket }} />}
            </div>
          </>
        ) : ticket ? (
          <QueenChat key={ticket} about={{ ticketId: ticket }} />
        ) : (
          loaded.data && (
            <Empty title={agent ? `${agent} is not loaded` : 'Load an agent to talk with it'}>
              <p>Agents that run elsewhere are watched, nudged and terminated from their own page.</p>
              <Copyable text="queenright agents load examples/docs_checker" />
            </Empty>
          )
        )}
      </div>
    </>
  )
}

/** The title of an agent's graph. By default, a graph has the name of its agent. */
const graphTitle = (slot: AgentSlot, graph: string): string => {
  const id = graph || slot.active_graph_id
  return id === slot.agent_id ? 'Graph' : `Graph ${id}`
}

function LoadAgent() {
  const caller = useQuery(callerQuery).data
  const [open, setOpen] = useState(false)
  const discovered = useQuery({ queryKey: ['loaded', 'discover'], queryFn: () => data(GET('/api/discover')), enabled: open })
  const navigate = useNavigate()
  const [path, setPath] = useState('')
  if (!caller?.may_manage) return null
  const choices = (discovered.data?.agents ?? []).filter((candidate) => !candidate.loaded && !candidate.problem)
  const chosenAgent = choices.find((candidate) => candidate.path === path) ?? choices[0]
  return (
    <>
      <Button small onPress={() => setOpen(true)}>
        Load…
      </Button>
      {open && (
        <ConfirmDialog
          title="Load an agent"
          lead={discovered.data ? `${counted(choices.length, 'agent')} found in ${discovered.data.roots.join(', ') || 'no folder: set agents.roots'}.` : 'Looking for agents…'}
          fields={[
            choices.length
              ? { name: 'path', label: 'Agent', options: choices.map((candidate) => ({ value: candidate.path, label: `${candidate.name} (${candidate.path})` })), onChange: setPath }
              : { name: 'path', label: 'Folder', required: true, hint: 'A folder below agents.roots.' },
            { name: 'model', label: 'Model', hint: 'A litellm model. Without one, the agent uses its own.' },
          ]}
          target={chosenAgent && <AgentRequirements agent={chosenAgent} />}
          confirm="Load"
          run={async ({ path = '', model }) => {
            const slot = await data(POST('/api/agents', { body: { path, ...(model ? { model } : {}) } }))
            showToast(`Loaded ${slot.agent_id}.`)
            void navigate({ to: '/talk', search: { agent: slot.agent_id } })
          }}
          onClose={() => setOpen(false)}
        />
      )}
    </>
  )
}

/** What an agent needs before it can run, according to its files. */
function AgentRequirements({ agent }: { agent: DiscoveredAgent }) {
  return (
    <div role="status">
      {agent.description && <p className="wrap">{agent.description}</p>}
      <dl className="facts">
        <dt>Inputs</dt>
        <dd>{agent.inputs.join(', ') || 'none, or known once it is loaded'}</dd>
        <dt>Environment</dt>
        <dd>{agent.credentials.join(', ') || 'no variables declared'}</dd>
      </dl>
      {agent.missing.length > 0 && <p className="problem">Not set in the environment of the service: {agent.missing.join(', ')}. Set it and start the service again, or choose another model.</p>}
    </div>
  )
}

function GraphChoice({ slot, graph }: { slot: AgentSlot; graph: string }) {
  const navigate = useNavigate()
  if (slot.graphs.length < 2) return null
  return (
    <select className="input" style={{ width: 'auto' }} aria-label="Graph" value={graph} onChange={(event) => void navigate({ to: '/talk', search: (before) => ({ ...before, graph: event.target.value }) })}>
      {slot.graphs.map((id) => (
        <option key={id}>{id}</option>
      ))}
    </select>
  )
}

/** The messages of a session, and the message that the agent is writing. */
function Conversation({ slot, session, graph }: { slot: AgentSlot; session: string; graph: string }) {
  const agentId = slot.agent_id
  const mayAct = useQuery(callerQuery).data?.may_act ?? false
  const navigate = useNavigate()
  const end = useRef<HTMLDivElement>(null)
  const [text, setText] = useState('')
  const messages = useQuery({
    queryKey: ['agent', agentId, 'messages', session],
    queryFn: () => data(GET('/api/agents/{agent_id}/sessions/{session_id}/messages', { params: { path: { agent_id: agentId, session_id: session }, query: { limit: 200 } } })),
    enabled: session !== '',
  })
  const typing = useTyping(agentId, session)
  const attention = useQuery({ ...attentionOfQuery(agentId, session), enabled: session !== '' })
  const question = attention.data?.items.find((item) => item.kind === 'question' && item.can_answer)
  const openQuestionId = question?.question_id ?? ''
  /** The question that was open when the user began to write. */
  const [about, setAbout] = useState('')
  const isLate = text !== '' && about !== '' && about !== openQuestionId
  const send = useAction(async (message: string) => {
    setText('')
    const body = { message, graph_id: graph, ...(session ? { session_id: session } : {}), ...(openQuestionId ? { question_id: openQuestionId } : {}) }
    const result = await data(POST('/api/agents/{agent_id}/chat', { params: { path: { agent_id: agentId } }, body })).catch((error: unknown) => {
      setText((newer) => newer || message)
      throw error
    })
    if (result.session_id && result.session_id !== session) void navigate({ to: '/talk', search: { agent: agentId, session: result.session_id } })
    return result.status === 'queued' ? 'Queued: the agent is busy with other runs.' : `Sent to ${agentId}.`
  })
  const rows = messages.data?.messages ?? []
  const count = rows.length
  const questionCalls = listQuestionCalls(rows)
  useEffect(() => {
    end.current?.scrollIntoView({ block: 'nearest' })
  }, [count, typing])
  return (
    <Panel title={<span className="wrap">{agentId}</span>} aside={session && <RunControls slot={slot} session={session} />}>
      <div className="chat">
        <div className="messages" role="log" aria-label={`Conversation with ${agentId}`} tabIndex={0}>
          {!session && <p className="muted">Write a message, start a run, or open a session.</p>}
          {messages.error && <ReadError error={messages.error} retry={() => void messages.refetch()} />}
          {session && !messages.data && !messages.error && <Loading />}
          {rows
            .filter((message) => !questionCalls.has(message.tool_call_id))
            .map((message) => (
              <MessageItem key={`${message.conversation}/${message.seq}`} message={message} />
            ))}
          {typing && <div className="message">{typing}</div>}
          {session && <Runs agentId={agentId} session={session} />}
          <div ref={end} />
        </div>
        {mayAct && (
          <form
            onSubmit={(event) => {
              event.preventDefault()
              if (text.trim() && !send.isPending && !isLate) send.mutate(text.trim())
            }}
          >
            {isLate && (
              <div className="row spread late">
                <span role="status">The question that you were answering is no longer open. Your text was not sent.</span>
                <Button small onPress={() => setAbout(openQuestionId)}>
                  {question ? 'Use it for the new question' : 'Use it as a message'}
                </Button>
              </div>
            )}
            <textarea
              className="input"
              rows={2}
              aria-label={`${question ? 'Answer' : 'Message'} to ${agentId}`}
              title={question?.title}
              placeholder={question ? 'Your answer' : 'Message'}
              value={text}
              onChange={(event) => {
                if (!text) setAbout(openQuestionId)
                setText(event.target.value)
              }}
              onKeyDown={sendOnEnter}
            />
            <Button type="submit" look="primary" isDisabled={!text.trim() || send.isPending || isLate}>
              {question ? 'Answer' : 'Send'}
            </Button>
          </form>
        )}
      </div>
    </Panel>
  )
}

/** Results of the runs of a session. */
function Runs({ agentId, session }: { agentId: string; session: string }) {
  const runs = useQuery(sessionQuery(agentId, session)).data?.runs ?? []
  return runs.map((run) => (
    <div key={run.execution_id} className="message run">
      <span className="row spread">
        <strong className="wrap">{run.entry_point_id}</strong>
        <Pill tone={toneOf(run.status)}>{run.status}</Pill>
      </span>
      {run.error && <p className="tone-failing wrap">{run.error}</p>}
      <dl className="facts">
        {Object.entries(run.outputs).map(([key, value]) => (
          <Fragment key={key}>
            <dt className="mono">{key}</dt>
            <dd>{typeof value === 'string' ? value : JSON.stringify(value, null, 1)}</dd>
          </Fragment>
        ))}
      </dl>
      <small>
        {counted(run.steps, 'step')}
        {run.cost > 0 && `, ${money(run.cost)}`}, <Ago at={run.ended_at ?? run.updated_at} />
      </small>
    </div>
  ))
}

function MessageItem({ message }: { message: MessageRow }) {
  const { at, conversation, kind, role, text } = message
  const questions = message.tool_calls.flatMap((call) => readQuestion(call) ?? [])
  return (
    <div className={`message ${role === 'user' ? 'mine' : role}`} tabIndex={role === 'tool' ? 0 : undefined}>
      {!questions.some((question) => question.includes(text)) && (role === 'user' && text === '{}' ? 'Started without inputs' : text)}
      {questions.map((question) => (
        <p key={question} className="question">
          {question}
        </p>
      ))}
      {message.tool_calls
        .filter((call) => !readQuestion(call))
        .map((call) => (
          <small key={call.id} className="mono">
            {call.name}({call.arguments.length > 160 ? `${call.arguments.slice(0, 160)}…` : call.arguments})
          </small>
        ))}
      <small title={dateTime(at)}>
        {kind === 'feedback' ? 'feedback of the judge' : role === 'tool' ? 'tool' : role === 'user' ? `to ${conversation}` : conversation}, <Ago at={at} />
      </small>
    </div>
  )
}

/** Event types after which another node of the graph may be active. */
const NODE_EVENTS = 'execution_started,node_loop_started,node_loop_completed,edge_traversed'

/** The text that an agent is writing; empty once the message is complete. */
function useTyping(agentId: string, session: string): string {
  const queries = useQueryClient()
  const [typing, setTyping] = useState('')
  useEffect(() => {
    const types = 'client_output_delta,llm_call_completed,client_input_requested,execution_completed,execution_failed'
    const source = new EventSource(`/api/agents/${encodeURIComponent(agentId)}/events?types=${types},${NODE_EVENTS}`)
    let buffer = ''
    let frame = 0
    const show = (): void => {
      frame = 0
      setTyping(buffer)
    }
    source.addEventListener('client_output_delta', (message: MessageEvent<string>) => {
      const event = JSON.parse(message.data) as { session_id: string; data: { text?: string } }
      if (session && event.session_id !== session) return
      buffer += event.data.text ?? ''
      frame ||= requestAnimationFrame(show)
    })
    const finish = (message: MessageEvent<string>): void => {
      if (session && (JSON.parse(message.data) as { session_id: string }).session_id !== session) return
      buffer = ''
      frame ||= requestAnimationFrame(show)
      void queries.invalidateQueries({ queryKey: ['agent', agentId] })
      void queries.invalidateQueries({ queryKey: ['loaded', agentId] })
    }
    for (const type of types.split(',').slice(1)) source.addEventListener(type, finish)
    let timer: ReturnType<typeof setTimeout> | undefined
    // Nodes may change faster than the graph can be read.
    const move = (): void => {
      timer ??= setTimeout(() => {
        timer = undefined
        void queries.invalidateQueries({ queryKey: ['agent', agentId, 'graph'] })
        if (session) void queries.invalidateQueries({ queryKey: ['agent', agentId, 'session', session] })
      }, 250)
    }
    for (const type of NODE_EVENTS.split(',')) source.addEventListener(type, move)
    return () => {
      clearTimeout(timer)
      source.close()
      cancelAnimationFrame(frame)
    }
  }, [agentId, session, queries])
  return typing
}

/** The incarnation of a session, as shown on this page; empty if the service does not watch it. */
function useIncarnation(agentId: string, session: string): string {
  return (
    useQuery({
      queryKey: ['session', session, 'health', agentId],
      queryFn: () => data(GET('/api/agents/{agent_id}/health', { params: { path: { agent_id: agentId }, query: { session_id: session } } })),
      retry: false,
    }).data?.incarnation_id ?? ''
  )
}

function RunControls({ slot, session }: { slot: AgentSlot; session: string }) {
  const mayAct = useQuery(callerQuery).data?.may_act ?? false
  const target = { session_id: session, incarnation_id: useIncarnation(slot.agent_id, session) }
  const detail = useQuery(sessionQuery(slot.agent_id, session))
  const pause = useAction(async () => {
    const stopped = await data(POST('/api/agents/{agent_id}/stop', { params: { path: { agent_id: slot.agent_id } }, body: target }))
    return `Paused ${counted(stopped.executions.length, 'run')} of ${slot.agent_id}.`
  })
  const resume = useAction(async () => {
    const started = await data(POST('/api/agents/{agent_id}/resume', { params: { path: { agent_id: slot.agent_id } }, body: target }))
    return started.status === 'queued' ? 'Queued: other runs come first.' : `Resumed ${slot.agent_id}.`
  })
  const status = detail.data?.status
  if (!status) return null
  return (
    <>
      <Pill tone={toneOf(status)}>{status}</Pill>
      {mayAct && status === 'active' && (
        <Button small onPress={() => pause.mutate()} isDisabled={pause.isPending}>
          Pause
        </Button>
      )}
      {mayAct && (status === 'paused' || detail.data?.interrupted) && (
        <Button small onPress={() => resume.mutate()} isDisabled={resume.isPending}>
          Resume
        </Button>
      )}
    </>
  )
}

/** A form that starts a run, with a field for each input of the entry point's node. */
function Start({ slot, graph }: { slot: AgentSlot; graph: string }) {
  const mayAct = useQuery(callerQuery).data
  const navigate = useNavigate()
  const [starting, setStarting] = useState<EntryPoint | null>(null)
  const [unloading, setUnloading] = useState(false)
  const entries = useQuery({
    queryKey: ['loaded', slot.agent_id, 'entries', graph],
    queryFn: () => data(GET('/api/agents/{agent_id}/entry-points', { params: { path: { agent_id: slot.agent_id }, query: { graph_id: graph } } })),
  })
  const node = useQuery({
    queryKey: ['loaded', slot.agent_id, 'inputs', starting?.graph_id, starting?.node_id],
    queryFn: () =>
      data(
        GET('/api/agents/{agent_id}/graphs/{graph_id}/nodes/{node_id}', {
          params: { path: { agent_id: slot.agent_id, graph_id: starting!.graph_id, node_id: starting!.node_id } },
        }),
      ),
    enabled: starting !== null,
  })
  if (!mayAct?.may_act) return null
  return (
    <Panel
      title="Start"
      aside={
        mayAct.may_manage && (
          <Button small look="danger" onPress={() => setUnloading(true)}>
            Unload…
          </Button>
        )
      }
    >
      {entries.error && <ReadError error={entries.error} />}
      <ul className="list">
        {entries.data?.entry_points.map((entry) => (
          <li key={entry.entry_point_id} className="item row">
            <span className="grow wrap">
              {entry.entry_point_id} <small>{entry.trigger_type === 'manual' ? '' : words(entry.trigger_type)}</small>
              {entry.running + entry.queued > 0 && (
                <small>
                  {' '}
                  {entry.running} running, {entry.queued} queued
                </small>
              )}
            </span>
            <Button small aria-label={`Start ${entry.entry_point_id}…`} isDisabled={node.isLoading} onPress={() => setStarting(entry)}>
              Start…
            </Button>
          </li>
        ))}
      </ul>
      {starting && node.error && <ReadError error={node.error} retry={() => void node.refetch()} />}
      {starting && node.data && (
        <ConfirmDialog
          title={`Start ${starting.entry_point_id}`}
          lead={`An entry point of ${slot.agent_id}${starting.graph_id === slot.agent_id ? '' : `, graph ${starting.graph_id}`}.`}
          fields={createFields(node.data.input_schema)}
          confirm="Start"
          run={async (values) => {
            const input = readInput(node.data.input_schema, values)
            const started = await data(POST('/api/agents/{agent_id}/trigger', { params: { path: { agent_id: slot.agent_id } }, body: { entry_point_id: starting.entry_point_id, graph_id: starting.graph_id, input_data: input } }))
            showToast(started.status === 'queued' ? 'Queued: as many runs are active as the entry point allows.' : `Started ${starting.entry_point_id}.`)
            if (started.session_id) void navigate({ to: '/talk', search: { agent: slot.agent_id, session: started.session_id } })
          }}
          onClose={() => setStarting(null)}
        />
      )}
      {unloading && (
        <ConfirmDialog
          title={`Unload ${slot.agent_id}?`}
          lead="Its runs are paused. They can be resumed once it is loaded again."
          confirm="Unload"
          danger
          run={async () => {
            await data(DELETE('/api/agents/{agent_id}', { params: { path: { agent_id: slot.agent_id } } }))
            showToast(`Unloaded ${slot.agent_id}.`)
          }}
          onClose={() => setUnloading(false)}
        />
      )}
    </Panel>
  )
}

const sessionsQuery = (agentId: string) =>
  queryOptions({
    queryKey: ['agent', agentId, 'sessions'],
    queryFn: () => data(GET('/api/agents/{agent_id}/sessions', { params: { path: { agent_id: agentId }, query: { limit: 30 } } })),
  })

function Sessions({ slot, session }: { slot: AgentSlot; session: string }) {
  const result = useQuery(sessionsQuery(slot.agent_id))
  return (
    <Panel title="Sessions">
      {result.error && <ReadError error={result.error} retry={() => void result.refetch()} />}
      <ul className="list">
        {result.data?.sessions.map((row) => (
          <li key={row.session_id}>
            <Link to="/talk" search={{ agent: slot.agent_id, session: row.session_id }} aria-current={row.session_id === session ? 'true' : undefined}>
              <span className="row spread">
                <span className="clip mono">{row.session_id}</span>
                <Pill tone={toneOf(row.status)}>{row.status}</Pill>
              </span>
              <small>
                <Ago at={row.updated_at} />
                {row.error && <span className="wrap">: {row.error}</span>}
              </small>
            </Link>
          </li>
        ))}
        {result.data?.sessions.length === 0 && <li className="item muted">No session yet.</li>}
      </ul>
    </Panel>
  )
}

function Checkpoints({ slot, session }: { slot: AgentSlot; session: string }) {
  const path = { agent_id: slot.agent_id, session_id: session }
  const mayAct = useQuery(callerQuery).data?.may_act ?? false
  const incarnation_id = useIncarnation(slot.agent_id, session)
  // The dialog keeps the process that was shown when it opened.
  const [restoring, setRestoring] = useState<{ checkpoint_id: string; incarnation_id: string } | null>(null)
  const result = useQuery({
    queryKey: ['agent', slot.agent_id, 'checkpoints', session],
    queryFn: () => data(GET('/api/agents/{agent_id}/sessions/{session_id}/checkpoints', { params: { path, query: { limit: 30 } } })),
  })
  return (
    <Panel title="Checkpoints">
      {result.error && <ReadError error={result.error} retry={() => void result.refetch()} />}
      <ul className="list">
        {result.data?.checkpoints.map((row) => (
          <li key={row.checkpoint_id} className="item row">
            <span className="grow">
              <span className="wrap">{row.node_id || row.checkpoint_id}</span>{' '}
              <small>
                {row.valid ? <Ago at={row.created_at} /> : row.problem}
              </small>
            </span>
            {mayAct && row.valid && (
              <Button small onPress={() => setRestoring({ checkpoint_id: row.checkpoint_id, incarnation_id })}>
                Restore…
              </Button>
            )}
          </li>
        ))}
        {result.data?.checkpoints.length === 0 && <li className="item muted">No checkpoint yet.</li>}
      </ul>
      {restoring && (
        <ConfirmDialog
          title="Restore this checkpoint?"
          lead="Everything after it is discarded, and the session continues from there."
          confirm="Restore"
          danger
          run={async () => {
            const started = await data(POST('/api/agents/{agent_id}/sessions/{session_id}/checkpoints/{checkpoint_id}/restore', { params: { path: { ...path, checkpoint_id: restoring.checkpoint_id } }, body: { incarnation_id: restoring.incarnation_id } }))
            showToast(started.status === 'queued' ? 'Queued: other runs come first.' : 'Restored.')
          }}
          onClose={() => setRestoring(null)}
        />
      )}
    </Panel>
  )
}
