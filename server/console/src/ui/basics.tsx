import './basics.css'
import { useRef, useState } from 'react'
import type { ReactNode } from 'react'
import { Button as AriaButton } from 'react-aria-components/Button'
import type { ButtonProps } from 'react-aria-components/Button'
import { ago, dateTime } from '../format'
import { useNow } from '../clock'

type Look = 'plain' | 'primary' | 'danger' | 'normal'

export function Button({ look = 'normal', small, className = '', ...rest }: Omit<ButtonProps, 'className'> & { look?: Look; small?: boolean; className?: string }) {
  return <AriaButton {...rest} className={`button ${look} ${small ? 'small' : ''} ${className}`} />
}

export type Tone = 'healthy' | 'degraded' | 'stuck' | 'failing' | 'quiet' | 'queen'

const TONES: Record<string, Tone> = {
  healthy: 'healthy', ok: 'healthy', completed: 'healthy', done: 'healthy', closed: 'healthy', resolved: 'healthy', approved: 'healthy', succeeded: 'healthy',
  degraded: 'degraded', medium: 'degraded', low: 'quiet', limited: 'degraded', half_open: 'degraded', warning: 'degraded',
  stuck: 'stuck', high: 'stuck',
  failing: 'failing', failed: 'failing', critical: 'failing', open: 'failing', refused: 'failing', bad: 'failing',
}

export const toneOf = (name: string): Tone => TONES[name] ?? 'quiet'

// Each tone has a shape, because many people cannot distinguish colours.
const SHAPES: Record<Tone, ReactNode> = {
  healthy: <circle cx="5" cy="5" r="4" />,
  degraded: <path d="M5 .8 9.6 9H.4z" />,
  stuck: <rect x="1" y="1" width="8" height="8" rx="1" />,
  failing: <path d="M3 .5h4L9.5 3v4L7 9.5H3L.5 7V3z" />,
  quiet: <circle cx="5" cy="5" r="3.2" fill="none" stroke="currentColor" strokeWidth="1.6" />,
  queen: <path d="M1 9 .3 2.7l2.6 2L5 1l2.1 3.7 2.6-2L9 9z" />,
}

export function Shape({ tone }: { tone: Tone }) {
  return (
    <svg className={`tone-${tone}`} width="10" height="10" viewBox="0 0 10 10" fill="currentColor" aria-hidden="true">
      {SHAPES[tone]}
    </svg>
  )
}

export function Pill({ tone, children }: { tone: Tone; children: ReactNode }) {
  return (
    <span className={`pill tone-${tone}`}>
      <Shape tone={tone} />
      {children}
    </span>
  )
}

/** A time, shown as an age. The absolute time appears on hover and for screen readers. */
export function Ago({ at }: { at: number | null | undefined }) {
  const now = useNow()
  if (!at) return <span className="muted">—</span>
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={dateTime(at)} className="number">
      {ago(at, now)}
    </time>
  )
}

export function Panel({ title, aside, children, id }: { title: ReactNode; aside?: ReactNode; children: ReactNode; id?: string }) {
  return (
    <section className="panel" id={id}>
      <header>
        <h2>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  )
}

/** Placeholder for missing content. With `isPage`, it replaces the whole page, and its title is the page heading. */
export function Empty({ title, isPage = false, children }: { title: string; isPage?: boolean; children?: ReactNode }) {
  const Heading = isPage ? 'h1' : 'h2'
  return (
    <div className="empty">
      <Heading>{title}</Heading>
      {children}
    </div>
  )
}

export function Loading({ rows = 3 }: { rows?: number }) {
  return (
    <div className="stack body" style={{ padding: 14 }} role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <div key={index} className="skeleton" style={{ width: `${90 - ((index * 23) % 45)}%` }} />
      ))}
    </div>
  )
}

/** Shown in place of actions to people who may not act. */
export const ReadOnly = () => <span className="muted">Read-only: actions require the role operator.</span>

/** Maximum characters and lines of a text that is shown in full. */
const SHORT_TEXT = { characters: 400, lines: 8 } as const

/** A text that is clamped until it is expanded. Short texts are shown in full. `children` is the rendered text. */
export function Clamped({ text, children = text }: { text: string; children?: ReactNode }) {
  const [isOpen, setOpen] = useState(false)
  if (text.length <= SHORT_TEXT.characters && text.split('\n').length <= SHORT_TEXT.lines) return children
  return (
    <>
      <span className={isOpen ? undefined : 'clamped'}>{children}</span>
      <button className="show-all" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isOpen ? 'Show less' : 'Show all'}
      </button>
    </>
  )
}

/** A button that loads the next page of a list, if there is one. */
export function ShowOlder({ list }: { list: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown } }) {
  if (!list.hasNextPage) return null
  return (
    <p className="body">
      <Button small onPress={() => void list.fetchNextPage()} isDisabled={list.isFetchingNextPage}>
        Show older
      </Button>
    </p>
  )
}

/** The error of a failed fetch, with a button to retry. */
export function ReadError({ error, retry }: { error: Error; retry?: () => void }) {
  return (
    <div className="problem row spread" role="alert" style={{ margin: 12 }}>
      <span>{sentence(error.message)}</span>
      {retry && (
        <Button small onPress={retry}>
          Try again
        </Button>
      )}
    </div>
  )
}

/** A text to copy, such as a command. */
export function Copyable({ text }: { text: string }) {
  const code = useRef<HTMLPreElement>(null)
  const [copied, setCopied] = useState('')
  function copy(): void {
    // A page without TLS that is not on loopback has no clipboard, so select the text for copying by keyboard.
    if (navigator.clipboard) void navigator.clipboard.writeText(text).then(() => setCopied(text))
    else if (code.current) getSelection()?.selectAllChildren(code.current)
  }
  return (
    <div className="copyable">
      <pre ref={code} tabIndex={0} className={text.includes('\n') ? undefined : 'one-line'}>
        {text}
      </pre>
      <Button small onPress={copy}>
        {copied === text ? 'Copied' : 'Copy'}
      </Button>
    </div>
  )
}

/** Render the parts of a text in single or double backticks as code. */
export const withCode = (text: string): ReactNode => text.split(/`{1,2}/).map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))

/** Render an error message as a sentence, with commands as code. */
export const sentence = (text: string): ReactNode => withCode(text.charAt(0).toUpperCase() + text.slice(1))
