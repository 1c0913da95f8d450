import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { providersQuery, statusQuery } from '../api/queries'
import { count, counted, duration, shortDuration, timeOfDay, words } from '../format'
import { useNow } from '../clock'
import { Ago, Loading, Panel, Pill, ReadError, Shape, toneOf } from '../ui/basics'

/** What Queenright is doing about workers that need no person. */
export function Doing() {
  const status = useQuery(statusQuery)
  const now = useNow()
  const acting = status.data?.acting
  return (
    <Panel title="What Queenright is doing" aside={<Link to="/operate/$section" params={{ section: 'acting' }} className="link muted">All</Link>}>
      {status.error && !acting ? (
        <ReadError error={status.error} retry={() => void status.refetch()} />
      ) : !acting ? (
        <Loading />
      ) : (
        <ul className="doing">
          {acting.emergency_stop.on && (
            <li>
              <Pill tone="failing">stopped</Pill>
              <span>Automatic actions are stopped: {acting.emergency_stop.reason || 'emergency stop'}</span>
            </li>
          )}
          {acting.dry_run && (
            <li>
              <Pill tone="degraded">dry run</Pill>
              <span>Actions are recorded and not carried out.</span>
            </li>
          )}
          {acting.brakes.map((brake) => (
            <li key={brake}>
              <Pill tone="degraded">held back</Pill>
              <span>{brake}</span>
            </li>
          ))}
          {acting.ladders.slice(0, 6).map((ladder) => (
            <li key={`${ladder.agent_id}/${ladder.session_id}`}>
              <span>
                <Link to="/agents/$agentId" params={{ agentId: ladder.agent_id }} search={{ session: ladder.session_id }} className="link">
                  {ladder.agent_id}
                </Link>{' '}
                <span className="muted">{ladder.what}</span>
              </span>
              <Ago at={ladder.acted_at} />
            </li>
          ))}
          {acting.recoveries.slice(0, 4).map((recovery) => (
            <li key={recovery.recovery_id}>
              <span>
                {recovery.agent_id} <span className="muted">recovery {words(recovery.state)}</span>
              </span>
            </li>
          ))}
          {!acting.ladders.length && !acting.recoveries.length && !acting.emergency_stop.on && (
            <li className="muted">
              {status.data?.tickets.length ? 'No action is under way.' : `Watching. Up for ${duration(now - (status.data?.started_at ?? now))}, no action is under way.`}
            </li>
          )}
          {acting.ladders_more > 0 && <li className="muted">and {counted(acting.ladders_more, 'more worker')}</li>}
          {status.data && status.data.outbox.pending > 0 && (
            <li>
              <Pill tone="degraded">alerts</Pill>
              <span>{counted(status.data.outbox.pending, 'alert')} not yet delivered to Alertmanager</span>
              <Ago at={status.data.outbox.oldest ?? null} />
            </li>
          )}
          {status.data?.not_ready.map((reason) => (
            <li key={reason}>
              <Pill tone="failing">not ready</Pill>
              <span>{reason}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  )
}

/** Status of model providers, from the fleet's own calls. */
export function ProviderStatus() {
  const providers = useQuery(providersQuery)
  const now = useNow()
  const rows = providers.data?.providers ?? []
  if (!rows.length) return null
  return (
    <Panel title="Providers">
      <ul className="doing">
        {rows.slice(0, 8).map((row) => (
          <li key={`${row.provider}/${row.model}`}>
            <Shape tone={toneOf(row.status)} />
            <span className="wrap">
              {row.model || row.provider} <span className="muted">{row.status === 'ok' ? '' : words(row.status)}</span>
            </span>
            <span className="when number">
              {row.limited_until && row.limited_until > now
                ? `limited until ${timeOfDay(row.limited_until)}`
                : row.failed
                  ? `${count(row.failed)} of ${count(row.calls)} failed`
                  : row.seconds_p50 !== null
                    ? `${row.seconds_p50 < 1 ? `${Math.round(row.seconds_p50 * 1000)} ms` : `${row.seconds_p50 < 10 ? row.seconds_p50.toFixed(1) : Math.round(row.seconds_p50)} s`}`
                    : row.last_success
                      ? `${shortDuration(now - row.last_success)} ago`
                      : ''}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  )
}
