import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { data, GET, POST } from '../api/client'
import { callerQuery } from '../api/queries'
import { by } from '../shell/name'
import { useAct } from '../ui/act'
import { Ago, Button, Loading, Panel, ReadError } from '../ui/basics'
import './talk.css'

/** What a chat is about: a ticket, or a session of a worker without one. */
export type Subject = { ticketId: string } | { agentId: string; sessionId: string }

const read = (about: Subject) =>
  'ticketId' in about
    ? GET('/api/tickets/{ticket_id}/chat', { params: { path: { ticket_id: about.ticketId } } })
    : GET('/api/agents/{agent_id}/queen', { params: { path: { agent_id: about.agentId }, query: { session_id: about.sessionId } } })

const send = (about: Subject, message: string) =>
  'ticketId' in about
    ? POST('/api/tickets/{ticket_id}/chat', { params: { path: { ticket_id: about.ticketId } }, body: { message, ...by() } })
    : POST('/api/agents/{agent_id}/queen', { params: { path: { agent_id: about.agentId } }, body: { message, session_id: about.sessionId, ...by() } })

/** Ask the queen about a ticket or a session, beside it. */
export function QueenChat({ about }: { about: Subject }) {
  const mayAct = useQuery(callerQuery).data?.may_act ?? false
  const chat = useQuery({
    queryKey: ['tickets', 'chat', about],
    queryFn: () => data(read(about)),
  })
  const [text, setText] = useState('')
  const ask = useAct(async (message: string) => {
    setText('')
    try {
      await data(send(about, message))
    } catch (error) {
      setText((newer) => newer || message)
      throw error
    }
    return 'The queen has answered.'
  })
  return (
    <Panel title="Ask the queen">
      <div className="chat">
        {chat.error ? (
          <ReadError error={chat.error} retry={() => void chat.refetch()} />
        ) : !chat.data ? (
          <Loading />
        ) : (
          <div className="messages" role="log" aria-label="Conversation with the queen" tabIndex={0}>
            {chat.data.messages.length === 0 && (
              <p className="muted">
                Ask what happened, whether it is still so, what has been done, or what you can do.
                {'ticketId' in about && (
                  <>
                    {' '}
                    Orders: <code>nudge it: TEXT</code>, <code>stop it: REASON</code>, <code>acknowledge</code>.
                  </>
                )}{' '}
                Anything else needs a language model (<code>judging.queen.model</code>).
              </p>
            )}
            {chat.data.messages.map((message) => (
              <div key={message.id} className={`message ${message.role === 'operator' ? 'mine' : ''}`}>
                {message.text || message.outcome}
                <small>
                  {message.role === 'queen' ? 'queen' : message.by}, <Ago at={message.at} />
                </small>
              </div>
            ))}
            {ask.isPending && <p className="muted">The queen is thinking…</p>}
          </div>
        )}
        {mayAct && (
          <form
            onSubmit={(event) => {
              event.preventDefault()
              if (text.trim() && !ask.isPending) ask.mutate(text.trim())
            }}
          >
            <textarea className="input" rows={1} aria-label="Question to the queen" placeholder="What happened? Is it still so?" value={text} onChange={(event) => setText(event.target.value)} onKeyDown={sendOnEnter} />
            <Button type="submit" look="primary" isDisabled={!text.trim() || ask.isPending}>
              Ask
            </Button>
          </form>
        )}
      </div>
    </Panel>
  )
}

/** Enter sends; Shift Enter begins a new line. */
export function sendOnEnter(event: React.KeyboardEvent<HTMLTextAreaElement>): void {
  if (event.key === 'Enter' && !event.shiftKey && !event.nativeEvent.isComposing) {
    event.preventDefault()
    event.currentTarget.form?.requestSubmit()
  }
}
