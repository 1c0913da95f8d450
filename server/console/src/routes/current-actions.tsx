import { useQuery } from '@tanstack/react-query'
import { Fragment } from 'react'
import { Link } from '@tanstack/react-router'
import { NO_ALERTMANAGER, providersQuery, statusQuery } from '../api/queries'
import { ago, count, counted, duration, timeOfDay, took, words } from '../format'
import { useNow } from '../clock'
import { Ago, Loading, Panel, Pill, ReadError, Shape, toneOf } from '../ui/basics'
import { groupByAction, listLimits } from './action-groups'

/** Maximum groups, and agent names in each. */
const MAX_GROUPS = 6
const MAX_NAMES = 2

/** Current actions on workers that need no person. */
export function CurrentActions() {
  const status = useQuery(statusQuery)
  const now = useNow()
  const acting = status.data?.acting
  const outbox = status.data?.outbox
  const groups = groupByAction(acting?.ladders ?? [])
  const hidden = groups.slice(MAX_GROUPS).reduce((sum, { workers }) => sum + workers.length, acting?.ladders_more ?? 0)
  return (
    <Panel title="What Queenright is doing" aside={<Link to="/operate/$section" params={{ section: 'actions' }} className="link muted">All</Link>}>
      {status.error && !acting ? (
        <ReadError error={status.error} retry={() => void status.refetch()} />
      ) : !acting ? (
        <Loading />
      ) : (
        <ul className="doing">
          {acting.emergency_stop.on && (
            <li>
              <Pill tone="failing">stopped</Pill>
              <span>All actions are stopped{acting.emergency_stop.by ? ` by ${acting.emergency_stop.by}` : ''}: {acting.emergency_stop.reason || 'emergency stop'}</span>
            </li>
          )}
          {acting.dry_run && (
            <li>
              <Pill tone="degraded">dry run</Pill>
              <span>Actions are recorded and not carried out.</span>
            </li>
          )}
          {listLimits(acting, now).map((limit) => (
            <li key={limit}>
              <Pill tone="degraded">held back</Pill>
              <span>{limit}</span>
            </li>
          ))}
          {groups.slice(0, MAX_GROUPS).map(({ what, workers, at }) => (
            <li key={what}>
              <span>
                {workers.slice(0, MAX_NAMES).map((worker, index) => (
                  <Fragment key={`${worker.agent_id}/${worker.session_id}`}>
                    {index > 0 && ', '}
                    <Link to="/agents/$agentId" params={{ agentId: worker.agent_id }} search={{ session: worker.session_id }} className="link">
                      {worker.agent_id}
                    </Link>
                  </Fragment>
                ))}
                {workers.length > MAX_NAMES && ` and ${count(workers.length - MAX_NAMES)} more`} <span className="muted">{what}</span>
              </span>
              <Ago at={at} />
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
          {hidden > 0 && <li className="muted">and {counted(hidden, 'more worker')}</li>}
          {outbox && (outbox.peers.length === 0 || outbox.pending > 0) && (
            <li>
              <Pill tone="degraded">alerts</Pill>
              <span>{outbox.peers.length ? `${counted(outbox.pending, 'alert')} not yet delivered to Alertmanager` : NO_ALERTMANAGER}</span>
              {outbox.peers.length > 0 && <Ago at={outbox.oldest ?? null} />}
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

/** Status of model providers, from the calls of the fleet. */
export function ProviderStatus() {
  const providers = useQuery(providersQuery)
  const now = useNow()
  const rows = providers.data?.providers ?? []
  if (!rows.length) return null
  const isShared = ({ model }: { model: string }): boolean => model !== '' && rows.filter((row) => row.model === model).length > 1
  return (
    <Panel title="Providers">
      <ul className="doing">
        {rows.slice(0, 8).map((row) => (
          <li key={`${row.provider}/${row.model}`}>
            <Shape tone={toneOf(row.status)} />
            <span className="wrap">
              {row.model || row.provider} <span className="muted">{[isShared(row) ? row.provider : '', row.status === 'ok' ? '' : words(row.status)].filter(Boolean).join(' · ')}</span>
            </span>
            <span className="when number" title="Of the last ten minutes">
              {row.limited_until && row.limited_until > now
                ? `limited until ${timeOfDay(row.limited_until)}`
                : row.failed
                  ? `${count(row.failed)} of ${count(row.calls)} failed`
                  : row.seconds_p50 !== null
                    ? took(row.seconds_p50)
                    : row.last_success
                      ? ago(row.last_success, now)
                      : ''}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  )
}
