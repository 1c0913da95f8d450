import { useQuery } from '@tanstack/react-query'
import { useEffect } from 'react'
import type { AgentHealth, DetectorValue, Step } from '../../api/schema'
import { evaluationQuery } from '../../api/steps'
import { count, duration, words } from '../../format'
import { Loading } from '../../ui/basics'
import { findStepMoment } from './compare'

/** The value of a detector as a share of its limit. */
export const share = (hold: DetectorValue): number => (hold.limit > 0 ? hold.value / hold.limit : hold.value > 0 ? 1 : 0)

/** Describe the value of a detector, and how many more make it fire. A share is only described. */
export function countText({ text, value, limit }: DetectorValue): string {
  if (!Number.isInteger(value) || !Number.isInteger(limit)) return text
  return value < limit ? `${text}; fires at ${count(limit - value)} more` : `${text}; has fired`
}

/** Position of the limit on the bar, in percent. Values beyond it extend to the right. */
const LIMIT_AT = 75

/** The value of a detector, relative to its limit. */
export function HoldBar({ hold, severity }: { hold: DetectorValue; severity: string }) {
  const part = share(hold)
  const width = part <= 1 ? part * LIMIT_AT : Math.min(100, LIMIT_AT + (part - 1) * 25)
  const isClock = hold.text === 'seconds'
  const shown = isClock ? duration : hold.limit < 1 ? percent : amount
  const level = part >= 1 ? 'over' : part >= 0.75 ? 'near' : ''
  return (
    <li className={`hold ${level} ${severity ? `firing severity-${severity}` : ''}`}>
      <span className="hold-name">{words(hold.detector)}</span>
      <span className="hold-bar" role="meter" aria-label={words(hold.detector)} aria-valuemin={0} aria-valuemax={hold.limit} aria-valuenow={Math.min(hold.value, hold.limit)} aria-valuetext={`${shown(hold.value)} of ${shown(hold.limit)}`}>
        <i style={{ width: `${width}%` }} />
        <b style={{ left: `${LIMIT_AT}%` }} />
      </span>
      <span className="hold-value number">
        {shown(hold.value)} <span className="muted">/ {shown(hold.limit)}</span>
      </span>
      {hold.text && !isClock && <span className="hold-text muted wrap">{countText(hold)}</span>}
    </li>
  )
}

const percent = (share: number): string => `${Math.round(share * 100)} %`

export const amount = (value: number): string => (Number.isInteger(value) ? count(value) : value >= 100 ? count(Math.round(value)) : Number(value.toPrecision(3)).toString())

/** The value of a finding's detector when it fired, relative to its limit. */
export function FindingValues({ step, worker }: { step: Step; worker: AgentHealth }) {
  const { data, error, refetch } = useQuery(evaluationQuery(worker.agent_id, worker.session_id, {}))
  // Data that was read before the finding does not contain its moment.
  const isOlder = data !== undefined && (data.moments.at(-1)?.at ?? 0) < step.at
  useEffect(() => {
    if (isOlder) void refetch()
  }, [isOlder, refetch])
  if (error) return <p className="muted">{error.message}</p>
  if (!data) return <Loading rows={1} />
  const moment = data.moments[findStepMoment(data.moments, step.step_id, step.at)]
  const holds = moment?.holds.filter((hold) => hold.detector === step.name) ?? []
  return (
    <ul className="held" aria-label="Detector values">
      {holds.map((hold, index) => (
        <HoldBar key={index} hold={hold} severity={step.severity} />
      ))}
    </ul>
  )
}
