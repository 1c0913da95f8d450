import './recorder.css'
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { useDeferredValue, useEffect, useMemo, useRef, useState } from 'react'
import type { AgentHealth, Evaluation, FiredFinding, Moment, Step, Threshold } from '../../api/schema'
import { evaluationQuery, stepsQuery } from '../../api/steps'
import { count, dateTime, duration, timeOfDay, took, words } from '../../format'
import { showToast } from '../../ui/toasts'
import { Button, Empty, Loading, Panel, Pill, ReadError, Shape, toneOf, withCode } from '../../ui/basics'
import { compareFired, fromSlider, momentAddress, findMoment, findStepMoment, readAddress, readSettings, SLIDER, sliderRange, thresholdFault, toSlider, writeSettings } from './compare'
import type { Difference } from './compare'
import { amount, HoldBar, share } from './detector-values'
import { KindIcon, kindName, stepName } from './kinds'
import { useOlder } from './older'

/** Maximum steps that are read for the moments. */
const MAX_STEPS = 5000

/** A session, moment by moment: the value of each detector, and the effect of other thresholds. */
export function Recorder({ worker }: { worker: AgentHealth }) {
  const { at, set } = useSearch({ from: '/agents/$agentId' })
  const navigate = useNavigate()
  const changedSettings = useMemo(() => readSettings(set), [set])
  const isChanged = Object.keys(changedSettings).length > 0
  const real = useQuery(evaluationQuery(worker.agent_id, worker.session_id, {}))
  const replayed = useQuery({ ...evaluationQuery(worker.agent_id, worker.session_id, changedSettings), enabled: isChanged, placeholderData: keepPreviousData })
  const { data: log, error: logError } = useQuery(stepsQuery(worker.agent_id, worker.session_id))
  // A moment is shown with its step. Steps are read while the service evaluates, which takes about as long.
  const firstAt = real.data?.moments[0]?.at ?? 0
  const minSteps = (log?.steps[0]?.at ?? 0) > firstAt ? MAX_STEPS : 0
  const older = useOlder(worker, log, minSteps)
  const steps = log?.steps
  const isLogRead = log && !(log.more && log.steps.length < minSteps)
  const absentText = isLogRead ? 'did not fire' : logError || older.state === 'failed' ? 'not known' : 'Loading…'

  function change(next: { at?: string; set?: string }): void {
    const merged = { session: worker.session_id, view: 'recorder', at, set, ...next }
    const search = Object.fromEntries(Object.entries(merged).filter(([, value]) => value))
    void navigate({ to: '/agents/$agentId', params: { agentId: worker.agent_id }, search, replace: true, resetScroll: false })
  }

  if (!real.data)
    return <Panel title="Flight recorder">{real.error ? <ReadError error={real.error} retry={() => void real.refetch()} /> : <Loading rows={6} />}</Panel>
  if (!real.data.moments.length)
    return (
      <Panel title="Flight recorder">
        <Empty title="Nothing is recorded for this session" />
      </Panel>
    )
  const shownEvaluation = isChanged ? (replayed.data ?? real.data) : real.data
  return (
    <div className="session-columns">
      <div className="stack">
        <Playback worker={worker} evaluation={shownEvaluation} real={real.data} isChanged={isChanged} steps={steps} isReading={!steps || older.state === 'reading'} at={at} onMove={(id) => change({ at: id })} onRefresh={() => void Promise.all([real.refetch(), isChanged ? replayed.refetch() : undefined])} />
        {isChanged && replayed.error && <ReadError error={replayed.error} retry={() => void replayed.refetch()} />}
        <Outcome real={real.data} steps={steps ?? []} absentText={absentText} replayed={isChanged ? replayed.data : undefined} isReading={isChanged && replayed.isFetching} onGo={(id) => change({ at: id })} />
      </div>
      <Thresholds evaluation={real.data} changedSettings={changedSettings} isReading={replayed.isFetching} onChange={(next) => change({ set: writeSettings(next) })} />
    </div>
  )
}

function Playback({ worker, evaluation, real, isChanged, steps, isReading, at, onMove, onRefresh }: {
  worker: AgentHealth
  evaluation: Evaluation
  real: Evaluation
  isChanged: boolean
  steps: readonly Step[] | undefined
  isReading: boolean
  at: string | undefined
  onMove: (address: string) => void
  onRefresh: () => void
}) {
  const { moments, fired } = evaluation
  const { step_id: requestedStep = '', at: requestedTime } = readAddress(at)
  const requested = requestedTime === undefined ? findStepMoment(moments, requestedStep, steps?.find((step) => step.step_id === requestedStep)?.at) : findMoment(moments, { step_id: requestedStep, at: requestedTime })
  const initial = requested >= 0 ? requested : fired[0] ? Math.max(0, findMoment(moments, fired[0])) : 0
  const [index, setIndex] = useState(initial)
  const writtenAddress = useRef(at)
  // The URL was changed elsewhere, by a link, Back or the list below.
  useEffect(() => {
    if (at === writtenAddress.current || requested < 0) return
    writtenAddress.current = at
    setIndex(requested)
  }, [at, requested])
  const current = Math.min(index, moments.length - 1)
  const moment = moments[current]!
  const address = momentAddress(moment)
  // Update the URL once the slider rests.
  useEffect(() => {
    if (current === (requested >= 0 ? requested : initial)) return
    const timer = setTimeout(() => onMove((writtenAddress.current = address)), 250)
    return () => clearTimeout(timer)
  })
  const go = (to: number): void => setIndex(Math.max(0, Math.min(moments.length - 1, to)))
  const marks = useMemo(() => fired.map((finding) => Math.max(0, findMoment(moments, finding))).sort((a, b) => a - b), [fired, moments])
  const previous = marks.findLast((mark) => mark < current)
  const next = marks.find((mark) => mark > current)
  const isBehind = !worker.ended && (steps?.at(-1)?.at ?? 0) > (real.moments.at(-1)?.at ?? 0)
  const shownStep = steps?.find((step) => step.step_id === moment.step_id)

  async function copy(): Promise<void> {
    const url = new URL(location.href)
    url.searchParams.set('session', worker.session_id)
    url.searchParams.set('view', 'recorder')
    url.searchParams.set('at', address)
    try {
      await navigator.clipboard.writeText(url.href)
      showToast('Copied the link to this moment.')
    } catch {
      showToast(`The browser does not allow copying. The link: ${url.href}`, true)
    }
  }

  return (
    <section className="panel" aria-labelledby="recorder">
      <header className="recorder-head">
        <h2 id="recorder">Flight recorder</h2>
        {isBehind && (
          <Button small look="plain" onPress={onRefresh}>
            Load new steps
          </Button>
        )}
        <Button small onPress={() => void copy()}>
          Copy link to this moment
        </Button>
        <a className="button small" download={`${worker.session_id}.jsonl`} href={`/api/agents/${encodeURIComponent(worker.agent_id)}/recording?session_id=${encodeURIComponent(worker.session_id)}`} title="A run that `queenright evaluate` reads">
          Export as fixture
        </a>
      </header>
      <div className="playback">
        <Track moments={moments} fired={evaluation.fired} real={isChanged ? real.fired : undefined} current={current} />
        <input
          type="range"
          className="scrubber"
          min={0}
          max={moments.length - 1}
          value={current}
          aria-label="Moment of the session"
          aria-valuetext={`${timeOfDay(moment.at)}, moment ${current + 1} of ${moments.length}, ${moment.health || 'healthy'}${shownStep ? `, ${stepName(shownStep)}` : ''}`}
          onChange={(event) => go(Number(event.target.value))}
        />
        <div className="playback-tools">
          <Button small aria-label="Previous detector that fired" isDisabled={previous === undefined} onPress={() => go(previous!)}>
            «<span className="hides-small"> fired</span>
          </Button>
          <Button small aria-label="Previous moment" isDisabled={current === 0} onPress={() => go(current - 1)}>
            ‹
          </Button>
          <span className="number playback-place">
            {count(current + 1)} <span className="muted">of {count(moments.length)}</span>
          </span>
          <Button small aria-label="Next moment" isDisabled={current === moments.length - 1} onPress={() => go(current + 1)}>
            ›
          </Button>
          <Button small aria-label="Next detector that fired" isDisabled={next === undefined} onPress={() => go(next!)}>
            <span className="hides-small">fired </span>»
          </Button>
          <span className="playback-time number" title={dateTime(moment.at)}>
            {timeOfDay(moment.at)} <span className="muted">+{duration(moment.at - moments[0]!.at)}</span>
          </span>
        </div>
        {evaluation.truncated && (
          <p className="muted">
            The beginning of the session is missing: this is its newest part, from {dateTime(moments[0]!.at)}. Detectors count from there, so a value that includes earlier events may be lower here.
          </p>
        )}
      </div>
      <MomentView moment={moment} step={shownStep} isReading={isReading} worker={worker} />
    </section>
  )
}

/** A strip with the health of the session, and the times at which detectors fired. */
function Track({ moments, fired, real, current }: { moments: readonly Moment[]; fired: readonly FiredFinding[]; real: readonly FiredFinding[] | undefined; current: number }) {
  const last = Math.max(1, moments.length - 1)
  const segments = useMemo(() => {
    const spans: { health: string; from: number; to: number }[] = []
    moments.forEach((moment, index) => {
      const before = spans.at(-1)
      if (before?.health === moment.health) before.to = index
      else spans.push({ health: moment.health, from: index, to: index })
    })
    return spans
  }, [moments])
  const offset = (finding: FiredFinding): number => (Math.max(0, findMoment(moments, finding)) / last) * 1000
  return (
    <div className="track" role="img" aria-label={`${counted(fired.length, 'time')} a detector fired`}>
      <svg viewBox="0 0 1000 34" preserveAspectRatio="none" aria-hidden="true">
        {segments.map(({ health, from, to }) => (
          <rect key={from} className={`health-${health || 'healthy'}`} x={(from / last) * 1000} y={12} width={Math.max(1.5, ((to - from + 1) / last) * 1000)} height={10} />
        ))}
        {(real ?? fired).map((finding, index) => (
          <rect key={index} className={`severity-${finding.severity} fired`} x={offset(finding) - 1.5} y={0} width={3} height={12}>
            <title>{`${words(finding.kind)} at ${timeOfDay(finding.at)}`}</title>
          </rect>
        ))}
        {real &&
          fired.map((finding, index) => (
            <rect key={index} className="fired tried" x={offset(finding) - 1.5} y={22} width={3} height={12}>
              <title>{`${words(finding.kind)} at ${timeOfDay(finding.at)} with the changed thresholds`}</title>
            </rect>
          ))}
        <rect className="cursor" x={(current / last) * 1000 - 1} y={0} width={2} height={34} />
      </svg>
      {real && (
        <p className="track-key muted">
          <span>above: thresholds in force</span> <span>below: changed thresholds</span>
        </p>
      )}
    </div>
  )
}

const counted = (value: number, noun: string): string => `${value} ${noun}${value === 1 ? '' : 's'}`

function MomentView({ moment, step, isReading, worker }: { moment: Moment; step: Step | undefined; isReading: boolean; worker: AgentHealth }) {
  const holds = useDeferredValue(moment.holds)
  const firing = new Map(moment.findings.map((finding) => [finding.kind, finding]))
  const sorted = [...holds].sort((a, b) => share(b) - share(a))
  return (
    <>
      <div className="moment-step">
        <Pill tone={toneOf(moment.health || 'healthy')}>{moment.health || 'healthy'}</Pill>
        {step ? (
          <>
            <KindIcon step={step} />
            <span className="clip grow">
              <span className="muted">{kindName(step.kind)}</span> <strong>{stepName(step)}</strong> <span className="muted">{step.text || step.detail}</span>
            </span>
          </>
        ) : (
          <span className="grow muted">{isReading ? 'Loading its step' : 'Between two steps'}</span>
        )}
        <Link to="/agents/$agentId" params={{ agentId: worker.agent_id }} search={{ session: worker.session_id, at: moment.step_id }} className="link muted">
          Show in the timeline
        </Link>
      </div>
      {moment.findings.length > 0 && (
        <ul className="moment-findings" aria-label="Findings at this moment">
          {moment.findings.map((finding) => (
            <li key={finding.kind} className={`severity-${finding.severity}`}>
              <Shape tone={toneOf(finding.severity)} />
              <strong>{words(finding.kind)}</strong> <span className="wrap">{finding.evidence}</span>
            </li>
          ))}
        </ul>
      )}
      <div className="holds">
        <h3>Detector values</h3>
        {sorted.length ? (
          <ul>
            {sorted.map((hold, index) => (
              <HoldBar key={`${hold.detector}${index}`} hold={hold} severity={firing.get(hold.detector)?.severity ?? ''} />
            ))}
          </ul>
        ) : (
          <p className="muted">All detector values are zero at this moment.</p>
        )}
      </div>
    </>
  )
}

/** The fired detectors, and the effect of changed thresholds. */
function Outcome({ real, replayed, steps, absentText, isReading, onGo }: {
  real: Evaluation
  replayed: Evaluation | undefined
  steps: readonly Step[]
  /** Text for a detector that is not in the log of the session. */
  absentText: string
  isReading: boolean
  onGo: (address: string) => void
}) {
  const rows = compareFired(real.fired, replayed ? replayed.fired : real.fired)
  const findLogged = (kind: string): Step | undefined => steps.find((step) => step.type === 'finding_opened' && step.name === kind)
  const start = real.moments[0]?.at ?? 0
  const renderTime = (fired: { step_id: string; at: number; severity: string; evidence?: string; text?: string } | undefined, otherwise = 'did not fire') =>
    fired ? (
      <button className="link number" onClick={() => onGo(momentAddress(fired))} title={`${fired.severity}: ${fired.evidence ?? fired.text ?? ''}`}>
        {timeOfDay(fired.at)} <span className="muted">+{duration(fired.at - start)}</span>
      </button>
    ) : (
      <span className="muted">{otherwise}</span>
    )
  return (
    <Panel title="What fired" aside={isReading && <span className="muted">Evaluating</span>}>
      {rows.length ? (
        <div className="scroll-x">
          <table className="table fired-table">
            <thead>
              <tr>
                <th>Detector</th>
                <th>In the session</th>
                <th>{replayed ? 'Thresholds in force' : 'Replayed'}</th>
                {replayed && <th>Changed thresholds</th>}
                {replayed && <th>Difference</th>}
                {!replayed && <th className="hides-small">Evidence</th>}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.kind}>
                  <td>
                    <span className="row">
                      <Shape tone={toneOf((row.after ?? row.before)!.severity)} />
                      {words(row.kind)}
                      {(row.after ?? row.before)!.shadow && <span className="muted">shadow</span>}
                    </span>
                  </td>
                  <td>{!findLogged(row.kind) && (row.after ?? row.before)!.shadow ? <span className="muted" title="A detector in shadow is shown and counted; it is not in the session's log.">shadow: not logged</span> : renderTime(findLogged(row.kind), absentText)}</td>
                  <td>{renderTime(row.before)}</td>
                  {replayed && <td>{renderTime(row.after)}</td>}
                  {replayed && (
                    <td>
                      <Change row={row} />
                    </td>
                  )}
                  {!replayed && <td className="wrap muted hides-small">{row.before?.evidence}</td>}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p className="body muted">No detector fired in this session{replayed ? ', with either thresholds' : ''}.</p>
      )}
    </Panel>
  )
}

function Change({ row }: { row: Difference }) {
  if (!row.after) return <strong className="tone-healthy">does not fire</strong>
  if (!row.before) return <strong className="tone-failing">fires</strong>
  if (!row.later) return <span className="muted">same</span>
  return (
    <strong className="number">
      {took(Math.abs(row.later))} {row.later > 0 ? 'later' : 'earlier'}
    </strong>
  )
}

/** Thresholds to try. Nothing is changed in the service. */
function Thresholds({ evaluation, changedSettings, isReading, onChange }: {
  evaluation: Evaluation
  changedSettings: Readonly<Record<string, number>>
  isReading: boolean
  onChange: (next: Record<string, number>) => void
}) {
  const [draft, setDraft] = useState<Record<string, number>>({ ...changedSettings })
  const [search, setSearch] = useState('')
  const sent = useRef(writeSettings(changedSettings))
  const urlSettings = writeSettings(changedSettings)
  useEffect(() => {
    // The URL was changed elsewhere.
    if (urlSettings !== sent.current) setDraft(readSettings((sent.current = urlSettings)))
  }, [urlSettings])
  const text = writeSettings(draft)
  useEffect(() => {
    if (text === sent.current) return
    const timer = setTimeout(() => {
      sent.current = text
      onChange(draft)
    }, 350)
    return () => clearTimeout(timer)
  })
  function change(setting: Threshold, value: number | null): void {
    setDraft((before) => {
      const { [setting.name]: _, ...others } = before
      return value === null || value === setting.value ? others : { ...others, [setting.name]: value }
    })
  }
  const filter = search.trim().toLowerCase()
  const matching = evaluation.settings.filter((setting) => !filter || `${setting.name} ${setting.help}`.toLowerCase().includes(filter))
  const groups = [...new Set(matching.map(groupName))].map((group) => [group, matching.filter((setting) => groupName(setting) === group)] as const)
  const changes = Object.keys(draft).length
  return (
    <aside aria-label="Thresholds">
      <section className="panel thresholds">
        <header>
          <h2>Thresholds</h2>
          {isReading && <span className="muted">Evaluating</span>}
          {changes > 0 && (
            <Button small look="plain" onPress={() => setDraft({})}>
              Reset {counted(changes, 'change')}
            </Button>
          )}
        </header>
        <div className="thresholds-top">
          <p className="muted">Move a threshold to see when its detector would have fired. The service's thresholds do not change.</p>
          <input className="input" type="search" aria-label="Filter thresholds" placeholder="Filter" value={search} onChange={(event) => setSearch(event.target.value)} />
        </div>
        {groups.map(([group, settings]) => (
          <details key={group} open={filter !== '' || settings.some((setting) => setting.name in draft) || group === 'loops'}>
            <summary>
              {sentence(group)} <span className="muted number">{settings.length}</span>
            </summary>
            {settings.map((setting) => (
              <ThresholdField key={setting.name} setting={setting} value={draft[setting.name]} onChange={(value) => change(setting, value)} />
            ))}
          </details>
        ))}
        {!matching.length && <p className="body muted">No threshold matches.</p>}
      </section>
    </aside>
  )
}

const PREFIX = /^health_monitoring\./

const sentence = (name: string): string => words(name).replace(/^./, (first) => first.toUpperCase())

/** `loops` of `health_monitoring.loops.window`. */
const groupName = ({ name }: Threshold): string => name.replace(PREFIX, '').replace(/\.?[^.]*$/, '') || 'other'

/** Format the allowed range. Bounds that nobody reaches are omitted. */
function formatRange({ minimum, maximum, unit }: Threshold): string {
  const high = maximum !== null && maximum < 1_000_000 ? maximum : null
  const low = minimum || null
  if (high !== null) return `, ${formatInUnit(minimum ?? 0, unit)} to ${formatInUnit(high, unit)}`
  return low === null ? '' : `, at least ${formatInUnit(low, unit)}`
}

const formatInUnit = (value: number, unit: string): string => (unit === 's' ? duration(value) : amount(value))

function ThresholdField({ setting, value, onChange }: { setting: Threshold; value: number | undefined; onChange: (value: number | null) => void }) {
  const { name } = setting
  const current = value ?? setting.value
  const [minimum, maximum] = sliderRange(setting.default, setting.minimum, setting.maximum)
  const isWhole = [setting.default, setting.minimum ?? 0, setting.value].every(Number.isInteger)
  const id = `threshold-${name}`
  // An invalid value stays in the field, with the reason, and is not evaluated.
  const [typed, setTyped] = useState<string | null>(null)
  const fault = typed === null ? '' : thresholdFault(typed, setting.minimum, setting.maximum, isWhole)
  const short = name.slice(name.lastIndexOf('.') + 1)
  return (
    <div className={`threshold ${value === undefined ? '' : 'changed'}`}>
      <label htmlFor={id} className="mono" title={name}>
        {short}
      </label>
      <span className="threshold-input">
        <input
          id={id}
          className="input number"
          type="number"
          min={setting.minimum ?? undefined}
          max={setting.maximum ?? undefined}
          step={isWhole ? 1 : 'any'}
          value={typed ?? current}
          aria-invalid={fault !== ''}
          aria-describedby={`${id}-help`}
          onChange={({ target }) => {
            const refused = thresholdFault(target.value, setting.minimum, setting.maximum, isWhole)
            setTyped(refused ? target.value : null)
            if (!refused) onChange(Number(target.value))
          }}
        />
        <span className="muted">{setting.unit}</span>
      </span>
      <input
        type="range"
        min={0}
        max={SLIDER}
        step={1}
        value={toSlider(current, minimum, maximum)}
        aria-label={name}
        aria-valuetext={formatInUnit(current, setting.unit)}
        onChange={(event) => (setTyped(null), onChange(fromSlider(Number(event.target.value), minimum, maximum, isWhole)))}
        onKeyDown={(event) => {
          // A slider step may be smaller than a step of the value.
          const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key]
          if (!by || !isWhole) return
          event.preventDefault()
          setTyped(null)
          onChange(Math.max(setting.minimum ?? 0, Math.min(setting.maximum ?? Infinity, current + by)))
        }}
      />
      <span id={`${id}-help`} className="hint muted">
        {fault && <span className="tone-failing" role="alert">Not used: {fault} </span>}
        {setting.help && <span className="wrap">{withCode(setting.help)} </span>}
        <span className="number">
          Default {formatInUnit(setting.default, setting.unit)}
          {setting.value !== setting.default && `, in force ${formatInUnit(setting.value, setting.unit)}`}{formatRange(setting)}
        </span>
        {(value !== undefined || typed !== null) && (
          <button className="link" onClick={() => (setTyped(null), onChange(null))}>
            Reset
          </button>
        )}
      </span>
    </div>
  )
}
