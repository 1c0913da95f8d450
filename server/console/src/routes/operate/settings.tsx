import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useState } from 'react'
import { data, GET, POST } from '../../api/client'
import { callerQuery } from '../../api/queries'
import { counted } from '../../format'
import { showToast } from '../../ui/toasts'
import { Button, Copyable, Empty, Loading, Panel, ReadError } from '../../ui/basics'
import { ConfirmDialog } from '../../ui/dialog'
import { SearchInput } from '../../ui/filters'
import { useFilters } from './filters'
import { flatten, isReloadable } from './tree'
import type { Setting } from './tree'

export const settingsQuery = { queryKey: ['settings'], queryFn: () => data(GET('/api/settings')) } as const

/** The settings in force. */
export function Settings() {
  const caller = useQuery(callerQuery).data
  if (!caller) return <Loading rows={6} />
  if (!caller.may_manage)
    return (
      <section className="panel">
        <Empty title="Reading the settings needs the role admin">
          <p>On the machine of the service, this command shows them:</p>
          <Copyable text="queenright config show" />
        </Empty>
      </section>
    )
  return <Tree />
}

function Tree() {
  const [{ search = '' }, change] = useFilters()
  const current = useQuery(settingsQuery)
  const queries = useQueryClient()
  const [asking, setAsking] = useState(false)
  if (current.error && !current.data) return <ReadError error={current.error} retry={() => void current.refetch()} />
  if (!current.data) return <Loading rows={8} />
  const text = search.trim().toLowerCase()
  const groups = new Map<string, Setting[]>()
  for (const entry of flatten(current.data.settings)) {
    if (text && !`${entry.name} ${entry.value}`.toLowerCase().includes(text)) continue
    const [group = ''] = entry.name.split('.')
    groups.set(group, [...(groups.get(group) ?? []), entry])
  }
  const { reloadable } = current.data
  return (
    <Panel
      title="In force"
      aside={
        <Button small onPress={() => setAsking(true)}>
          Reload…
        </Button>
      }
    >
      <div className="fleet-tools">
        <SearchInput label="Filter by name or value" value={search} onChange={(next) => change({ search: next })} />
        <span className="muted">Changed in queenright.yaml or the environment; in force after a reload or a restart. Secrets are masked.</span>
      </div>
      <div className="settings">
        {[...groups].map(([group, settings]) => (
          <details key={`${group}/${text ? 'found' : ''}`} open={text !== '' || groups.size === 1}>
            <summary>
              {group} <span className="muted">{counted(settings.length, 'setting')}</span>
            </summary>
            <dl>
              {settings.map(({ name, value }) => (
                <div key={name}>
                  <dt className="mono">{name}</dt>
                  <dd className="mono">{value === '' ? <span className="muted">empty</span> : value}</dd>
                  <dd className="muted">{isReloadable(name, reloadable) ? 'reload' : 'restart'}</dd>
                </div>
              ))}
            </dl>
          </details>
        ))}
        {groups.size === 0 && <Empty title="No setting matches" />}
      </div>
      {asking && (
        <ConfirmDialog
          title="Reload the settings?"
          lead="The settings file and the environment are read again. Settings that can change at runtime are applied. An invalid file changes nothing."
          confirm="Reload"
          run={async () => {
            const result = await data(POST('/-/reload'))
            await queries.invalidateQueries({ queryKey: ['settings'] })
            showToast(
              result.unchanged
                ? 'No setting has changed.'
                : [result.applied.length && `Applied: ${result.applied.join(', ')}.`, result.needs_restart.length && `These need a restart: ${result.needs_restart.join(', ')}.`].filter(Boolean).join(' '),
            )
          }}
          onClose={() => setAsking(false)}
        />
      )}
    </Panel>
  )
}
