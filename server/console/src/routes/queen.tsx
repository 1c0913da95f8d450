import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { data, GET, POST } from '../api/client'
import { callerQuery } from '../api/queries'
import { by } from '../shell/name'
import { useAct } from '../ui/act'
import { Ago, Button, Loading, Panel, ReadError } from '../ui/basics'
import './talk.css'

/** Ask the queen about a ticket, beside it. */
export function QueenChat({ ticketId }: { ticketId: string }) {
  const mayAct = useQuery(callerQuery).data?.may_act ?? false
  const chat = useQuery({
    queryKey: ['tickets', 'chat', ticketId],
    queryFn: () => data(GET('/api/tickets/{ticket_id}/chat', { params: { path: { ticket_id: ticketId } } })),
  })
  const [text, setText] = useState('')
  const ask = useAct(async (message: string) => {
    setText('')
    try {
      await data(POST('/api/tickets/{ticket_id}/chat', { params: { path: { ticket_id: ticketId } }, body: { message, ...by() } }))
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
            {chat.data.messages.length === 0 && <p className="muted">Ask what happened, whether it is still so, what has been done, or what you can do. Orders: <code>nudge it: TEXT</code>, <code>stop it: REASON</code>, <code>acknowledge</code>. Anything else needs a language model (<code>judging.queen.model</code>).</p>}
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
