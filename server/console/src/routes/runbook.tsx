import { useQuery } from '@tanstack/react-query'
import { createElement, Fragment } from 'react'
import type { ReactNode } from 'react'
import { useState } from 'react'
import { RequestError } from '../api/client'
import { Loading, ReadError } from '../ui/basics'

/** Allowed tags of a runbook. Its headings are below those of the page. */
const TAGS: Record<string, string> = {
  H1: 'h3', H2: 'h3', H3: 'h4', H4: 'h4', P: 'p', UL: 'ul', OL: 'ol', LI: 'li', PRE: 'pre', CODE: 'code', STRONG: 'strong', EM: 'em',
  BLOCKQUOTE: 'blockquote', TABLE: 'table', THEAD: 'thead', TBODY: 'tbody', TR: 'tr', TH: 'th', TD: 'td', HR: 'hr', BR: 'br',
}

/** Convert the nodes of a document to elements. Only the tags above and links are kept, without attributes. */
function renderNodes(nodes: Iterable<Node>): ReactNode[] {
  return [...nodes].map((node, index) => {
    if (node.nodeType === Node.TEXT_NODE) return node.textContent
    if (!(node instanceof HTMLElement)) return null
    const children = renderNodes(node.childNodes)
    const href = node.tagName === 'A' ? node.getAttribute('href') : null
    if (href && /^(https?:\/\/|\/)/.test(href)) return createElement('a', { key: index, href, className: 'link' }, ...children)
    const tag = TAGS[node.tagName]
    if (tag === 'hr' || tag === 'br') return createElement(tag, { key: index })
    return createElement(tag ?? Fragment, { key: index }, ...children)
  })
}

/** Read a runbook, as the service renders it. It contains no text from agents. */
async function readRunbook(name: string): Promise<ReactNode[]> {
  const response = await fetch(`/runbooks/${encodeURIComponent(name)}`)
  if (!response.ok) throw new RequestError(`The runbook could not be read (${response.status}).`, response.status)
  const main = new DOMParser().parseFromString(await response.text(), 'text/html').querySelector('main')
  for (const link of main?.querySelectorAll('a[href]') ?? []) {
    // Runbooks link to each other by file name.
    const href = link.getAttribute('href') ?? ''
    if (/^\w+$/.test(href)) link.setAttribute('href', `/runbooks/${href}`)
  }
  return renderNodes(main?.childNodes ?? [])
}

/** A runbook that expands in the page. */
export function Runbook({ name, isOpen = false }: { name: string; isOpen?: boolean }) {
  const [open, setOpen] = useState(isOpen)
  const result = useQuery({ queryKey: ['runbook', name], queryFn: () => readRunbook(name), enabled: open, staleTime: Infinity, structuralSharing: false })
  return (
    <details className="panel runbook" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <h2>Runbook</h2>
        <span className="muted">{name}</span>
      </summary>
      {open && (
        <div className="prose">
          {result.error ? <ReadError error={result.error} retry={() => void result.refetch()} /> : (result.data ?? <Loading rows={5} />)}
        </div>
      )}
    </details>
  )
}
