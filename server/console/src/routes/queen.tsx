import { useMutation, useQuery } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { addPiece } from '../api/answer'
import type { StreamedAnswer } from '../api/answer'
import { data, GET, POST } from '../api/client'
import { callerQuery } from '../api/queries'
import { onEvent } from '../api/watch'
import { getActor } from '../shell/user-name'
import { Ago, Button, Loading, Panel, ReadError, withCode } from '../ui/basics'
import './talk.css'

/** The subject of a chat: a ticket, or a session without a ticket. */
export type Subject = { ticketId: string } | { agentId: string; sessionId: string }

const read = (about: Subject) =>
  'ticketId' in about
    ? GET('/api/tickets/{ticket_id}/chat', { params: { path: { ticket_id: about.ticketId } } })
    : GET('/api/agents/{agent_id}/queen', { params: { path: { agent_id: about.agentId }, query: { session_id: about.sessionId } } })

const send = (about: Subject, message: string, signal: AbortSignal) =>
  'ticketId' in about
    ? POST('/api/tickets/{ticket_id}/chat', { params: { path: { ticket_id: about.ticketId } }, body: { message, ...getActor() }, signal })
    : POST('/api/agents/{agent_id}/queen', { params: { path: { agent_id: about.agentId } }, body: { message, session_id: about.sessionId, ...getActor() }, signal })

/** A chat with the queen about a ticket or a session. */
export function QueenChat({ about }: { about: Subject }) {
  const mayAct = useQuery(callerQuery).data?.may_act ?? false
  const chat = useQuery({
    queryKey: ['tickets', 'chat', about],
    queryFn: () => data(read(about)),
  })
  const [text, setText] = useState('')
  const answer = useStreamedAnswer(about)
  const isWriting = answer !== null && !chat.data?.messages.some(({ role, question_id }) => role === 'queen' && question_id === answer.questionId)
  // Leaving the page ends the request. The answer is still stored.
  const leaving = useRef<AbortController>(null)
  useEffect(() => () => leaving.current?.abort(), [])
  const ask = useMutation({
    mutationFn: (message: string) => {
      setText('')
      leaving.current = new AbortController()
      return data(send(about, message, leaving.current.signal))
    },
    onError: (_, message) => setText((newer) => newer || message),
  })
  const messages = useRef<HTMLDivElement>(null)
  const count = chat.data?.messages.length
  useEffect(() => {
    if (messages.current) messages.current.scrollTop = messages.current.scrollHeight
  }, [count, answer, ask.status])
  return (
    <Panel title="Ask the queen">
      <div className="chat">
        {chat.error ? (
          <ReadError error={chat.error} retry={() => void chat.refetch()} />
        ) : !chat.data ? (
          <Loading />
        ) : (
          <div ref={messages} className="messages" role="log" aria-label="Conversation with the queen" aria-busy={isWriting} tabIndex={0}>
            {chat.data.messages.length === 0 && (
              <p className="muted">
                Ask what happened, whether it still happens, what was done, or what you can do.
                {'ticketId' in about && (
                  <>
                    {' '}
                    Orders: <code>nudge it: TEXT</code>, <code>terminate it: REASON</code>, <code>acknowledge</code>.
                  </>
                )}{' '}
                Anything else needs a language model (<code>judging.queen.model</code>).
              </p>
            )}
            {chat.data.messages.map((message) => (
              <div key={message.id} className={`message ${message.role === 'operator' ? 'mine' : ''}`}>
                {withCode(message.text || message.outcome)}
                <small>
                  {message.role === 'queen' ? 'queen' : message.by}, <Ago at={message.at} />
                </small>
              </div>
            ))}
            {isWriting && answer.text ? (
              <div className="message">
                {withCode(answer.text)}
                <small>queen, writing…</small>
              </div>
            ) : (
              (isWriting || ask.isPending) && <p className="muted">The queen is {isWriting ? 'writing' : 'thinking'}…</p>
            )}
            {ask.error && (
              <p className="problem" role="alert">
                No answer: {ask.error.message}
              </p>
            )}
          </div>
        )}
        {mayAct && (
          <form
            onSubmit={(event) => {
              event.preventDefault()
              if (text.trim() && !ask.isPending) ask.mutate(text.trim())
            }}
          >
            <textarea className="input" rows={1} aria-label="Question to the queen" placeholder="What happened?" value={text} onChange={(event) => setText(event.target.value)} onKeyDown={sendOnEnter} />
            <Button type="submit" look="primary" isDisabled={!text.trim() || ask.isPending}>
              Ask
            </Button>
          </form>
        )}
      </div>
    </Panel>
  )
}

/** The answer that the queen is writing about a subject, whoever asked. */
function useStreamedAnswer(about: Subject): StreamedAnswer | null {
  const [answer, setAnswer] = useState<StreamedAnswer | null>(null)
  const key = JSON.stringify(about)
  useEffect(() => {
    const subject = JSON.parse(key) as Subject
    return onEvent((event) => {
      const { ticket_id, agent_id, session_id } = event.data
      const isAboutSubject = 'ticketId' in subject ? ticket_id === subject.ticketId : !ticket_id && agent_id === subject.agentId && session_id === subject.sessionId
      if (event.type === 'queen_answer_delta' && isAboutSubject) setAnswer((current) => addPiece(current, event))
    })
  }, [key])
  return answer
}

/** Send on Enter. Shift+Enter starts a new line. */
export function sendOnEnter(event: React.KeyboardEvent<HTMLTextAreaElement>): void {
  if (event.key === 'Enter' && !event.shiftKey && !event.nativeEvent.isComposing) {
    event.preventDefault()
    event.currentTarget.form?.requestSubmit()
  }
}
