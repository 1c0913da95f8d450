import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { data, DELETE, GET } from '../../api/client'
import { alertmanagerQuery, callerQuery, NO_ALERTMANAGER } from '../../api/queries'
import type { Silence } from '../../api/schema'
import { useNow } from '../../clock'
import { counted, dateTime, duration } from '../../format'
import { showToast } from '../../ui/toasts'
import { Button, Empty, Loading, Panel, Pill, ReadError } from '../../ui/basics'
import { ConfirmDialog } from '../../ui/dialog'
import { useState } from 'react'

/** All silences in Alertmanager, by end time. */
export function Silences() {
  const result = useQuery({ queryKey: ['tickets', 'silences'], queryFn: () => data(GET('/api/silences')) })
  const rows = result.data?.silences
  const mayNotify = useQuery(alertmanagerQuery).data
  return (
    <Panel title={rows?.length ? counted(rows.length, 'silence') : 'Silences'}>
      {result.error && !result.data ? (
        <ReadError error={result.error} retry={() => void result.refetch()} />
      ) : !rows ? (
        <Loading rows={3} />
      ) : (
        <>
          {result.data?.unknown && <p className="problem">{result.data.unknown}</p>}
          {rows.length === 0 && (
            <Empty title="Nothing is silenced">
              <p>{mayNotify === false ? NO_ALERTMANAGER : 'Every notification that the queen approves is sent. Silence a ticket on its page; it then sends nothing until the silence ends.'}</p>
              <Link to="/tickets" search={{}} className="link">
                Go to the tickets
              </Link>
            </Empty>
          )}
          <ul className="entries">
            {rows.map((row) => (
              <SilenceItem key={row.silence_id} row={row} />
            ))}
          </ul>
        </>
      )}
    </Panel>
  )
}

function SilenceItem({ row }: { row: Silence }) {
  const now = useNow()
  const mayAct = useQuery(callerQuery).data?.may_act
  const [asking, setAsking] = useState(false)
  return (
    <li>
      <div className="grow">
        <p className="row wraps">
          <Pill tone={row.state === 'active' ? 'degraded' : 'quiet'}>{row.state}</Pill>
          <strong className="wrap mono">{row.matchers.join(', ')}</strong>
        </p>
        {row.comment && <p className="wrap">{row.comment}</p>}
        <p className="muted number wraps row">
          <span title={dateTime(row.ends_at)}>{row.starts_at > now ? `Begins in ${duration(row.starts_at - now)}` : `Ends in ${duration(Math.max(0, row.ends_at - now))}`}</span>
          {row.by && <span>by {row.by}</span>}
          {row.tickets.map((id) => (
            <Link key={id} to="/tickets/$ticketId" params={{ ticketId: id }} className="link mono">
              {id}
            </Link>
          ))}
        </p>
      </div>
      {mayAct && (
        <Button small onPress={() => setAsking(true)} aria-label={`End the silence ${row.matchers.join(', ')}`}>
          End…
        </Button>
      )}
      {asking && (
        <ConfirmDialog
          title="End this silence?"
          lead="Notifications of what it silences are sent again."
          target={<p className="mono wrap">{row.matchers.join(', ')}</p>}
          confirm="End silence"
          run={async () => {
            await data(DELETE('/api/silences/{silence_id}', { params: { path: { silence_id: row.silence_id } } }))
            showToast('The silence has ended.')
          }}
          onClose={() => setAsking(false)}
        />
      )}
    </li>
  )
}
