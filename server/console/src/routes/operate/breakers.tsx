import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { data, GET, POST } from '../../api/client'
import { callerQuery } from '../../api/queries'
import type { Breaker } from '../../api/schema'
import { useNow } from '../../clock'
import { counted, duration, words } from '../../format'
import { getActor } from '../../shell/user-name'
import { showToast } from '../../ui/toasts'
import { Ago, Button, Empty, Loading, Panel, Pill, ReadError, toneOf } from '../../ui/basics'
import { ConfirmDialog } from '../../ui/dialog'
import { Choice, SearchInput } from '../../ui/filters'
import { useFilters } from './filters'

const RANK = { open: 0, half_open: 1, closed: 2 } as const
const SHOWN = 200

/** Read all circuit breakers. The list is short enough. */
async function readBreakers(): Promise<Breaker[]> {
  const rows: Breaker[] = []
  for (let cursor = ''; ; ) {
    const page = await data(GET('/api/breakers', { params: { query: { limit: 1000, ...(cursor ? { cursor } : {}) } } }))
    rows.push(...page.breakers)
    if (!page.next) return rows.sort((a, b) => RANK[a.state] - RANK[b.state] || b.failures - a.failures || a.name.localeCompare(b.name))
    cursor = page.next
  }
}

/** Circuit breakers of tools and providers. Those that are not closed come first. */
export function Breakers() {
  const [{ search = '', state = '' }, change] = useFilters()
  const result = useQuery({ queryKey: ['acting', 'breakers'], queryFn: readBreakers })
  const text = search.toLowerCase()
  const rows = result.data?.filter((row) => (!state || row.state === state) && `${row.name} ${row.reason}`.toLowerCase().includes(text))
  const open = result.data?.filter((row) => row.state !== 'closed').length ?? 0
  return (
    <Panel title={!result.data?.length ? 'Breakers' : open ? `${open} of ${result.data.length} not closed` : `All ${result.data.length} closed: calls pass`}>
      {result.error && !result.data ? (
        <ReadError error={result.error} retry={() => void result.refetch()} />
      ) : !rows ? (
        <Loading rows={5} />
      ) : result.data?.length === 0 ? (
        <Empty title="No circuit breaker yet">
          <p>A breaker is created by the first call through it. After several consecutive failures it opens, and calls fail immediately until it closes.</p>
        </Empty>
      ) : (
        <>
          <div className="fleet-tools" role="group" aria-label="Filters">
            <SearchInput label="Name or reason" value={search} onChange={(next) => change({ search: next })} />
            <Choice label="State" value={state} options={[['open', 'open'], ['half_open', 'half open'], ['closed', 'closed']]} onChange={(next) => change({ state: next })} />
          </div>
          {rows.length === 0 && <Empty title="No breaker matches these filters" />}
          <ul className="entries">
            {rows.slice(0, SHOWN).map((row) => (
              <BreakerItem key={row.name} row={row} />
            ))}
            {rows.length > SHOWN && <li className="muted">and {counted(rows.length - SHOWN, 'more breaker')}; search for them by name.</li>}
          </ul>
        </>
      )}
    </Panel>
  )
}

function BreakerItem({ row }: { row: Breaker }) {
  const now = useNow()
  const mayAct = useQuery(callerQuery).data?.may_act
  const [asking, setAsking] = useState(false)
  return (
    <li>
      <div className="grow">
        <p className="row wraps">
          <Pill tone={toneOf(row.state)}>{words(row.state)}</Pill>
          <strong className="wrap">{row.target || row.name}</strong>
          <span className="muted wrap">
            {words(row.kind)}
            {row.agent_id && (
              <>
                {' '}
                of{' '}
                <Link className="link" to="/agents/$agentId" params={{ agentId: row.agent_id }} search={{}}>
                  {row.agent_id}
                </Link>
              </>
            )}
          </span>
        </p>
        {row.reason && <p className="wrap">{row.reason}</p>}
        <p className="muted number">
          {row.session_id ? "In the worker's own process, session " : row.failures ? `${row.failures} of ${counted(row.threshold, 'failure')} in a row` : `Opens after ${counted(row.threshold, 'failure')} in a row`}
          {row.session_id && (
            <Link className="link" to="/agents/$agentId" params={{ agentId: row.agent_id }} search={{ session: row.session_id }}>
              {row.session_id}
            </Link>
          )}
          {row.opened_at && (
            <>
              , opened <Ago at={row.opened_at} />
            </>
          )}
          {row.state === 'open' && row.half_open_at && row.half_open_at > now && `, tries again in ${duration(row.half_open_at - now)}`}
        </p>
      </div>
      {mayAct && !row.session_id && (row.state !== 'closed' || row.failures > 0) && (
        <Button small onPress={() => setAsking(true)} aria-label={`Reset ${row.name}`}>
          Reset…
        </Button>
      )}
      {asking && (
        <ConfirmDialog
          title={`Reset ${row.name}?`}
          lead="It closes, and calls pass immediately. If they fail again, it opens again."
          confirm="Reset"
          run={async () => {
            await data(POST('/api/breakers/{name}/reset', { params: { path: { name: row.name } }, body: { ...getActor() } }))
            showToast(`Reset ${row.name}.`)
          }}
          onClose={() => setAsking(false)}
        />
      )}
    </li>
  )
}
