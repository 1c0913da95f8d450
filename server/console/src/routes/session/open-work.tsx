import { useQuery } from '@tanstack/react-query'
import { stepsQuery } from '../../api/steps'
import type { AgentHealth, Step } from '../../api/schema'
import { useNow } from '../../clock'
import { dateTime, duration, timeLeft, timeOfDay, words } from '../../format'
import { Loading, Panel, Shape, toneOf } from '../../ui/basics'
import { HoldBar } from './detector-values'
import { KindIcon, kindName, stepName } from './kinds'

/** Work in progress, with its duration. */
export function OpenWork({ worker }: { worker: AgentHealth }) {
  const log = useQuery(stepsQuery(worker.agent_id, worker.session_id))
  const open = log.data?.open ?? []
  const now = useNow()
  if (worker.ended) {
    const outcome = worker.outcome || 'unknown'
    return (
      <Panel title="Outcome">
        <p className="open-none">
          <Shape tone={toneOf(outcome)} />
          <span>
            The session is over: <strong>{outcome}</strong>
            {worker.reason && outcome !== 'completed' ? `, ${worker.reason}` : ''}
          </span>
          <span className="muted number" title={dateTime(worker.last_activity)}>
            {timeOfDay(worker.last_activity)}
          </span>
        </p>
      </Panel>
    )
  }
  return (
    <Panel title="Now">
      {!log.data ? (
        // The timeline shows why it cannot be read.
        !log.error && <Loading rows={1} />
      ) : open.length ? (
        <ul className="open-list">
          {open.map((step) => (
            <OpenStep key={step.step_id} step={step} now={now} />
          ))}
        </ul>
      ) : (
        <p className="open-none muted">
          <span>No turn, tool call or wait is open.</span>
          <span className="number">Last activity {duration(now - worker.last_activity)} ago</span>
        </p>
      )}
    </Panel>
  )
}

/** Values of the detectors that fire next. */
export function NextDetectors({ worker }: { worker: AgentHealth }) {
  const { clocks = [], counts = [] } = useQuery(stepsQuery(worker.agent_id, worker.session_id)).data ?? {}
  const now = useNow()
  if (worker.ended || !(clocks.length || counts.length)) return null
  return (
    <Panel id="detectors" title="Detectors">
      {clocks.length > 0 && (
        <ul className="clocks" aria-label="Detectors that fire if nothing happens">
          {clocks.slice(0, 4).map((clock) => (
            <li key={clock.detector} title={`Since ${dateTime(clock.since)}, limit ${duration(clock.limit_seconds)}`}>
              <strong>{words(clock.detector)}</strong>{' '}
              <span className="muted number">
                {clock.fires_at > now ? `in ${timeLeft(clock.fires_at, now, clock.limit_seconds)}` : 'due'}, limit {duration(clock.limit_seconds)}
              </span>
            </li>
          ))}
        </ul>
      )}
      {counts.length > 0 && (
        <ul className="counts" aria-label="Detectors that fire if this continues">
          {counts.slice(0, 3).map((detectorValue) => (
            <HoldBar key={`${detectorValue.detector}${detectorValue.text}`} hold={detectorValue} severity={worker.findings.find((finding) => finding.kind === detectorValue.detector)?.severity ?? ''} />
          ))}
        </ul>
      )}
    </Panel>
  )
}

function OpenStep({ step, now }: { step: Step; now: number }) {
  const elapsed = Math.max(0, now - step.started_at)
  const firesAt = step.fires_at ?? null
  const limit = step.limit_seconds ?? 0
  // The limit may count from the last activity instead of the start.
  const counted = firesAt === null ? elapsed : Math.max(0, now - (firesAt - limit))
  const share = limit ? Math.min(1, counted / limit) : null
  const level = share === null ? '' : share >= 1 ? 'over' : share >= 0.75 ? 'near' : ''
  return (
    <li className={`open-step ${level}`}>
      <KindIcon step={step} />
      <span className="open-what">
        <strong className="wrap">{stepName(step)}</strong> <span className="muted">{kindName(step.kind).toLowerCase()}</span>
        {(step.text || step.detail) && <span className="open-text">{step.text || step.detail}</span>}
      </span>
      <span className="open-clock number" title={`Since ${dateTime(step.started_at)}`}>
        {duration(elapsed)}
      </span>
      {limit ? (
        <>
          <span className="limit-bar" role="progressbar" aria-label={`Time of ${stepName(step)}`} aria-valuemin={0} aria-valuemax={Math.round(limit)} aria-valuenow={Math.floor(Math.min(counted, limit))} aria-valuetext={`${duration(counted)} of ${duration(limit)}`}>
            <i style={{ width: `${(share ?? 0) * 100}%` }} />
          </span>
          <span className="open-fires muted number">
            {firesAt !== null && firesAt > now ? (
              <>
                Stalled in <strong>{timeLeft(firesAt, now, limit)}</strong>, <span title={dateTime(firesAt)}>at {timeOfDay(firesAt)}</span>
              </>
            ) : (
              <strong>Stalled</strong>
            )}
            . Limit {duration(limit)}
            {step.reason && <span className="wrap"> ({step.reason})</span>}
          </span>
        </>
      ) : (
        step.reason && <span className="open-fires muted">{step.reason}</span>
      )}
    </li>
  )
}
