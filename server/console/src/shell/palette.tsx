import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { Autocomplete } from 'react-aria-components/Autocomplete'
import { Dialog } from 'react-aria-components/Dialog'
import { ListBox, ListBoxItem } from 'react-aria-components/ListBox'
import { Modal, ModalOverlay } from 'react-aria-components/Modal'
import { Input, SearchField } from 'react-aria-components/SearchField'
import { data, GET } from '../api/client'
import type { AgentRow } from '../api/schema'
import { useNow } from '../clock'
import { ago } from '../format'
import { sessionState } from '../routes/fleet-filters'
import { Shape, toneOf } from '../ui/basics'
import { rankSessions } from './ranking'

interface Entry {
  id: string
  label: string
  note: string
  to: string
  search?: Record<string, string>
  tone?: string
}

const PLACES: readonly Entry[] = [
  { id: 'p-fleet', label: 'Fleet', note: 'page', to: '/' },
  { id: 'p-tickets', label: 'Tickets', note: 'page', to: '/tickets' },
  { id: 'p-incidents', label: 'Incidents', note: 'page', to: '/incidents' },
  { id: 'p-talk', label: 'Talk with agents', note: 'page', to: '/talk' },
  { id: 'p-actions', label: 'Actions', note: 'page', to: '/operate/actions' },
  { id: 'p-stop', label: 'Emergency stop', note: 'page', to: '/operate/actions' },
  { id: 'p-breakers', label: 'Circuit breakers', note: 'page', to: '/operate/breakers' },
  { id: 'p-recoveries', label: 'Recoveries', note: 'page', to: '/operate/recoveries' },
  { id: 'p-silences', label: 'Silences', note: 'page', to: '/operate/silences' },
  { id: 'p-telemetry', label: 'Telemetry', note: 'page', to: '/operate/telemetry' },
  { id: 'p-audit', label: 'Audit trail', note: 'page', to: '/operate/audit' },
  { id: 'p-settings', label: 'Settings', note: 'page', to: '/operate/settings' },
  { id: 'p-tokens', label: 'Tokens', note: 'page', to: '/operate/tokens' },
  { id: 'p-connect', label: 'Connect an agent', note: 'page', to: '/connect' },
]

/** Text that distinguishes sessions of one agent. */
const describeSession = (row: AgentRow, now: number): string => [sessionState(row), `started ${ago(row.started_at, now)}`, row.repository, row.owner, `…${row.session_id.slice(-6)}`].filter(Boolean).join(' · ')

/** Number of sessions to read, and to show. */
const READ_LIMIT = 60
const SHOWN_LIMIT = 12

/** Search for agents, sessions, tickets and pages: Ctrl-K. */
export default function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState('')
  const navigate = useNavigate()
  const query = text.trim()
  const agents = useQuery({
    queryKey: ['agents', 'palette', query],
    queryFn: () => data(GET('/api/agents', { params: { query: { search: query, limit: READ_LIMIT } } })),
    enabled: query !== '',
    placeholderData: (before) => before,
  })
  const now = useNow()
  const results = agents.data?.agents ?? []
  // Results of the previous text stay only if their name contains the current text, because Enter opens the first.
  const matching = agents.isPlaceholderData ? results.filter((row) => row.agent_id.toLowerCase().includes(query.toLowerCase())) : results
  const rows = rankSessions(matching, query).slice(0, SHOWN_LIMIT)
  const entries: Entry[] = [
    ...(query
      ? rows.map((row) => ({
          id: `a-${row.agent_id}/${row.session_id}`,
          label: row.agent_id,
          note: describeSession(row, now),
          to: '/agents/$agentId',
          search: { session: row.session_id },
          tone: sessionState(row),
        }))
      : []),
    ...PLACES.filter((place) => place.label.toLowerCase().includes(query.toLowerCase())),
    ...(/^[0-9a-f-]{6,}$/i.test(query) ? [{ id: `t-${query}`, label: `Ticket ${query}`, note: 'ticket', to: `/tickets/${query}` }] : []),
  ]
  function go(id: string): void {
    const entry = entries.find((candidate) => candidate.id === id)
    if (!entry) return
    onClose()
    if (entry.to.includes('$')) void navigate({ to: '/agents/$agentId', params: { agentId: entry.label }, search: entry.search ?? {} })
    else void navigate({ to: entry.to as '/' })
  }
  return (
    <ModalOverlay className="overlay" isOpen isDismissable onOpenChange={(open) => !open && onClose()}>
      <Modal className="modal palette">
        <Dialog aria-label="Search">
          <Autocomplete inputValue={text} onInputChange={setText}>
            {/* Escape closes the search even if it contains text. */}
            <SearchField aria-label="Search for agents, sessions, tickets and pages" autoFocus onClear={onClose}>
              <Input className="input" role="combobox" aria-expanded placeholder="Agent, session, ticket or page" />
            </SearchField>
            <ListBox aria-label="Results" className="palette-list" items={entries} selectionMode="none" onAction={(key) => go(String(key))} renderEmptyState={() => <p className="muted" style={{ padding: 10 }}>Nothing found</p>}>
              {(entry) => (
                <ListBoxItem id={entry.id} textValue={entry.label} className="palette-item">
                  {entry.tone !== undefined && <Shape tone={toneOf(entry.tone)} />}
                  <span className="clip">{entry.label}</span>
                  <span className="muted wrap" title={entry.search?.session}>
                    {entry.note}
                  </span>
                </ListBoxItem>
              )}
            </ListBox>
          </Autocomplete>
        </Dialog>
      </Modal>
    </ModalOverlay>
  )
}
