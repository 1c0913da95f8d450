import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { useVirtualizer } from '@tanstack/react-virtual'
import type { CSSProperties, KeyboardEvent } from 'react'
import { memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react'
import { stepsQuery } from '../../api/steps'
import type { Log } from '../../api/steps'
import type { AgentHealth, Step } from '../../api/schema'
import { useNow } from '../../clock'
import { count, counted, dateTime, duration, money, timeOfDay, took } from '../../format'
import { Button, Empty, Loading, Panel, ReadError } from '../../ui/basics'
import { readAddress } from './compare'
import { findGaps, numberRepeats, findRepeats, windowAt, findWindows, addShadowFindings } from './evidence'
import type { Repeat, Window } from './evidence'
import { GROUPS, groupOf, isCleared, isOwnStep, KindIcon, kindName, Mark, SHADOW, stepName } from './kinds'
import { FindingValues } from './detector-values'
import { useOlder } from './older'
import { Overview } from './overview'

const ROW = 34
/** Number of steps that are read automatically, so that repeats and windows are complete. */
const READ_AHEAD = 1000

/** The steps of a session, newest first: work, findings and interventions. */
export function Timeline({ worker }: { worker: AgentHealth }) {
  const log = useQuery(stepsQuery(worker.agent_id, worker.session_id))
  const older = useOlder(worker, log.data, READ_AHEAD)
  if (!log.data)
    return <Panel title="Timeline">{log.error ? <ReadError error={log.error} retry={() => void log.refetch()} /> : <Loading rows={8} />}</Panel>
  return <Steps worker={worker} log={log.data} older={older} />
}

function Steps({ worker, log, older }: { worker: AgentHealth; log: Log; older: ReturnType<typeof useOlder> }) {
  const { at: address, kinds, repeat: signature } = useSearch({ from: '/agents/$agentId' })
  const at = readAddress(address).step_id
  const navigate = useNavigate()
  const ended = worker.ended ? worker.last_activity : null
  const repeats = useMemo(() => findRepeats(log.steps), [log.steps])
  const ordinals = useMemo(() => numberRepeats(log.steps, repeats), [log.steps, repeats])
  const windows = useMemo(() => findWindows(log.steps, ended), [log.steps, ended])
  const gaps = useMemo(() => findGaps(log.steps), [log.steps])
  const longest = useMemo(() => Math.max(1, ...log.steps.map(stepDuration)), [log.steps])
  const steps = useMemo(() => addShadowFindings(log.steps, worker.shadow_findings), [log.steps, worker.shadow_findings])
  const counts = useMemo(() => {
    const countsByGroup: Record<string, number> = {}
    for (const step of steps) countsByGroup[groupOf(step.kind)] = (countsByGroup[groupOf(step.kind)] ?? 0) + 1
    return countsByGroup
  }, [steps])
  const shownKinds = useMemo(() => new Set(kinds?.split(',').filter(Boolean)), [kinds])
  const visibleSteps = useMemo(
    () => steps.filter((step) => (!shownKinds.size || shownKinds.has(groupOf(step.kind))) && (!signature || step.signature === signature)).reverse(),
    [steps, shownKinds, signature],
  )
  const change = (next: { at?: string; kinds?: string; repeat?: string }): void => {
    const merged = { session: worker.session_id, at, kinds, repeat: signature, ...next }
    const search = Object.fromEntries(Object.entries(merged).filter(([, value]) => value))
    void navigate({ to: '/agents/$agentId', params: { agentId: worker.agent_id }, search, replace: true, resetScroll: false })
  }
  function toggle(id: string): void {
    const next = new Set(shownKinds)
    if (!next.delete(id)) next.add(id)
    change({ kinds: [...next].join(',') })
  }
  const repeated = [...repeats.values()].sort((a, b) => b.count - a.count).slice(0, 6)
  const selected = steps.find((step) => step.step_id === at)
  return (
    <section className="panel timeline" aria-labelledby="timeline">
      <header>
        <h2 id="timeline">
          Timeline <span className="muted number">{log.more ? `${count(log.steps.length)}+ entries` : counted(log.steps.length, 'entry', 'entries')}, newest first</span>
        </h2>
      </header>
      <Overview steps={log.steps} windows={windows} repeated={repeats} ended={worker.ended ? Math.max(worker.last_activity, log.steps.at(-1)?.at ?? 0) : null} selected={selected} onSelect={(step) => change({ at: step.step_id, ...(visibleSteps.includes(step) ? {} : { kinds: '', repeat: '' }) })} />
      <div className="timeline-tools">
        <div className="chips" role="group" aria-label="Kinds of steps">
          {GROUPS.map((group) => (
            <button key={group.id} className="chip" aria-pressed={shownKinds.has(group.id)} disabled={!counts[group.id] && !shownKinds.has(group.id)} onClick={() => toggle(group.id)}>
              {group.label} <span className="number">{count(counts[group.id] ?? 0)}</span>
            </button>
          ))}
        </div>
        {log.more && <span className="muted number">of the newest {count(log.steps.length)} entries</span>}
        {repeated.length > 0 && (
          <div className="chips" role="group" aria-label="Repeated calls">
            {repeated.map((call) => (
              <button key={call.signature} className="chip repeat" aria-pressed={signature === call.signature} title={`${call.name}: ${call.count} calls with the same arguments and result`} onClick={() => change({ repeat: signature === call.signature ? '' : call.signature })}>
                <Mark glyph={call.glyph} /> <span className="clip">{call.name}</span> <span className="number">×{count(call.count)}</span>
              </button>
            ))}
          </div>
        )}
        {(shownKinds.size > 0 || signature) && (
          <Button small look="plain" onPress={() => change({ kinds: '', repeat: '' })}>
            Clear
          </Button>
        )}
      </div>
      {visibleSteps.length ? (
        <Rows key={`${kinds} ${signature}`} worker={worker} steps={visibleSteps} repeats={repeats} ordinals={ordinals} windows={windows} gaps={shownKinds.size || signature ? NO_GAPS : gaps} longest={longest} at={at} onOpen={(id) => change({ at: id })} more={() => log.more && older.state === 'idle' && void older.read()} />
      ) : log.steps.length ? (
        <Empty title="No step matches these filters" />
      ) : (
        <Empty title="Nothing is recorded for this session">
          <p>Its steps appear here as its telemetry arrives.</p>
        </Empty>
      )}
      <footer className="timeline-foot muted">
        {log.more ? (
          <Button small look="plain" isDisabled={older.state === 'reading'} onPress={() => void older.read()}>
            {older.state === 'reading' ? 'Loading' : 'Load'} earlier steps
          </Button>
        ) : (
          'This is the whole session.'
        )}
      </footer>
    </section>
  )
}

function Rows({ worker, steps, repeats, ordinals, windows, gaps, longest, at, onOpen, more }: {
  worker: AgentHealth
  steps: readonly Step[]
  repeats: ReadonlyMap<string, Repeat>
  ordinals: ReadonlyMap<string, number>
  windows: readonly Window[]
  /** Seconds without activity before a step. */
  gaps: ReadonlyMap<string, number>
  /** The longest step in seconds, which has the full length of a bar. */
  longest: number
  at: string | undefined
  onOpen: (id: string) => void
  more: () => void
}) {
  const scroll = useRef<HTMLDivElement>(null)
  const [focused, setFocused] = useState(0)
  const [unseen, setUnseen] = useState(0)
  const virtual = useVirtualizer({
    count: steps.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW,
    overscan: 10,
    getItemKey: (index) => steps[index]!.step_id,
  })

  // New steps appear at the top. A scrolled list keeps its position and shows a notice.
  const place = useRef({ stepId: '', index: 0 })
  const keepPlace = useCallback((): void => {
    const index = virtual.getVirtualItemForOffset(scroll.current?.scrollTop ?? 0)?.index ?? 0
    place.current = { stepId: steps[index]?.step_id ?? '', index }
  }, [steps, virtual])
  useLayoutEffect(() => {
    const box = scroll.current
    if (!box) return
    const added = steps.findIndex((step) => step.step_id === place.current.stepId) - place.current.index
    if (added > 0 && box.scrollTop >= ROW) {
      box.scrollTop += added * ROW
      setFocused((index) => index + added)
      setUnseen((total) => total + added)
    }
    keepPlace()
  }, [steps, keepPlace])

  // Scroll to the step of the URL once, and again when it is selected elsewhere.
  const opened = useRef<string | undefined>(undefined)
  const index = at ? steps.findIndex((step) => step.step_id === at) : -1
  useEffect(() => {
    if (index < 0 || opened.current === at) return
    opened.current = at
    setFocused(index)
    virtual.scrollToIndex(index, { align: 'center' })
  }, [at, index, virtual])

  const items = virtual.getVirtualItems()
  const last = items.at(-1)?.index ?? 0
  useEffect(() => {
    if (last >= steps.length - 20) more()
  })

  function move(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor((scroll.current?.clientHeight ?? 0) / ROW) - 1)
    const to = { ArrowDown: focused + 1, ArrowUp: focused - 1, PageDown: focused + page, PageUp: focused - page, Home: 0, End: steps.length - 1 }[event.key]
    if (to === undefined || !(event.target as Element).matches('.step-open')) return
    event.preventDefault()
    const next = Math.max(0, Math.min(steps.length - 1, to))
    setFocused(next)
    virtual.scrollToIndex(next)
    const focus = (): void => scroll.current?.querySelector<HTMLElement>(`[data-index="${next}"] .step-open`)?.focus({ preventScroll: true })
    requestAnimationFrame(() => requestAnimationFrame(focus))
  }

  const tabStop = items.some((item) => item.index === focused) ? focused : items[0]?.index
  return (
    <div className="steps-frame">
      {unseen > 0 && (
        <Button small className="unseen" onPress={() => (scroll.current!.scrollTo({ top: 0 }), setUnseen(0), setFocused(0))}>
          ↑ {count(unseen)} new
        </Button>
      )}
      <div className="steps" ref={scroll} style={{ height: `min(var(--most), ${virtual.getTotalSize()}px)` }} onKeyDown={move} onScroll={(event) => (keepPlace(), event.currentTarget.scrollTop < ROW && unseen && setUnseen(0))}>
        <ol style={{ height: virtual.getTotalSize() }} aria-label="Steps, newest first">
          {items.map((item) => {
            const step = steps[item.index]!
            const isOpen = step.step_id === at
            return (
              <li key={item.key} ref={virtual.measureElement} data-index={item.index} aria-setsize={steps.length} aria-posinset={item.index + 1} style={{ transform: `translateY(${item.start}px)` }}>
                <StepRow
                  step={step}
                  previous={steps[item.index + 1]}
                  repeat={repeats.get(step.signature)}
                  ordinal={ordinals.get(step.step_id)}
                  window={windowAt(windows, step.at)}
                  longest={longest}
                  isOpen={isOpen}
                  tabIndex={item.index === tabStop ? 0 : -1}
                  onOpen={onOpen}
                />
                {isOpen && <StepDetail step={step} worker={worker} repeat={repeats.get(step.signature)} ordinal={ordinals.get(step.step_id)} />}
                {gaps.has(step.step_id) && <p className="step-gap muted number">{duration(gaps.get(step.step_id)!)} without activity</p>}
              </li>
            )
          })}
        </ol>
      </div>
    </div>
  )
}

/** The duration of a step in seconds; 0 for an instant. */
const stepDuration = (step: Step): number => (step.phase === 'instant' || step.ended_at === null ? 0 : step.ended_at - step.started_at)

const NO_GAPS: ReadonlyMap<string, number> = new Map()

const day = (at: number): string => new Date(at * 1000).toDateString()

const StepRow = memo(function StepRow({ step, previous, repeat, ordinal, window, isOpen, tabIndex, longest, onOpen }: {
  step: Step
  previous: Step | undefined
  repeat: Repeat | undefined
  ordinal: number | undefined
  window: Window | undefined
  isOpen: boolean
  tabIndex: number
  longest: number
  onOpen: (id: string) => void
}) {
  const isEvent = !['turn', 'tool', 'wait'].includes(step.kind)
  const seconds = step.phase === 'instant' || step.ended_at === null ? null : step.ended_at - step.started_at
  const severity = isCleared(step) ? '' : step.severity
  const tone = step.kind === 'finding' ? `severity-${severity || 'low'}` : ''
  return (
    <button
      className={`step-open ${step.kind} ${step.phase} ${isOwnStep(step) ? 'step' : ''} ${isEvent ? 'event' : ''} ${tone} ${window ? `in-window severity-${window.severity}` : ''}`}
      aria-expanded={isOpen}
      tabIndex={tabIndex}
      onClick={() => onOpen(isOpen ? '' : step.step_id)}
    >
      <span className="step-time number" title={dateTime(step.at)}>
        {previous && day(previous.at) !== day(step.at) && <span className="visually-hidden">{dateTime(step.at)}</span>}
        {timeOfDay(step.at)}
      </span>
      <KindIcon step={step} />
      <span className="step-what clip">
        <span className="visually-hidden">{kindName(step.kind)}: </span>
        <span className="step-name">{stepName(step)}</span>
        {severity && <span className={`step-severity severity-${severity}`}>{severity}</span>}
        {(step.text || step.detail) && (
          <span className={`step-text ${isOwnStep(step) ? `verdict-${step.detail.toLowerCase()}` : ''}`} title={step.text || step.detail}>
            {step.detail && step.text && !isEvent ? `${step.detail} · ` : ''}
            {step.text || step.detail}
          </span>
        )}
      </span>
      {repeat && ordinal !== undefined ? (
        <span className="step-repeat number" title={`Call ${ordinal} of ${repeat.count} with the same arguments and result`}>
          <Mark glyph={repeat.glyph} />
          {ordinal}/{count(repeat.count)}
        </span>
      ) : (
        <span className="step-repeat" />
      )}
      {step.phase === 'open' && !isEvent ? (
        <Running since={step.started_at} longest={longest} />
      ) : (
        <span className="step-took number" style={lengthStyle((seconds ?? 0) / longest)}>
          {seconds === null ? '' : took(seconds)}
        </span>
      )}
      <span className="step-tokens number" title={step.tokens_in || step.tokens_out ? 'Tokens in and out' : undefined}>
        {step.tokens_in || step.tokens_out ? `${count(step.tokens_in)} → ${count(step.tokens_out)}` : ''}
      </span>
      <span className="step-cost number">{step.cost_usd === null ? '' : money(step.cost_usd)}</span>
    </button>
  )
})

const lengthStyle = (length: number): CSSProperties => ({ '--length': Math.min(1, length) }) as CSSProperties

/** The duration of an open step, with a growing bar. */
function Running({ since, longest }: { since: number; longest: number }) {
  const seconds = Math.max(0, useNow() - since)
  return (
    <span className="step-took number" style={lengthStyle(seconds / longest)}>
      <span className="running">{duration(seconds)}</span>
    </span>
  )
}

function StepDetail({ step, worker, repeat, ordinal }: { step: Step; worker: AgentHealth; repeat: Repeat | undefined; ordinal: number | undefined }) {
  const facts: [string, string][] = [
    ['Kind', `${kindName(step.kind)}${step.phase === 'instant' ? '' : `, ${step.phase}`}`],
    ['At', dateTime(step.phase === 'instant' ? step.at : step.started_at)],
    ['Since', step.phase === 'instant' && step.started_at < step.at ? dateTime(step.started_at) : ''],
    ['Took', step.phase === 'instant' || step.ended_at === null ? '' : took(step.ended_at - step.started_at)],
    ['Repeats', repeat ? `call ${ordinal} of ${repeat.count} with the same arguments and result` : ''],
    ['Tokens', step.tokens_in || step.tokens_out ? `${count(step.tokens_in)} in, ${count(step.tokens_out)} out` : ''],
    ['Cost', step.cost_usd === null ? '' : money(step.cost_usd)],
    ['Severity', step.severity],
    ['Detail', step.detail],
  ]
  return (
    <div className="step-detail">
      {step.text ? <pre className="step-full">{step.text}</pre> : (step.kind === 'turn' || step.kind === 'tool') && <p className="muted">Its content is not recorded.</p>}
      <dl className="facts">
        {facts.map(([name, value]) => value && (
          <div key={name} style={{ display: 'contents' }}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {step.type === 'finding_opened' && <FindingValues step={step} worker={worker} />}
      <div className="row wraps">
        <Link to="/agents/$agentId" params={{ agentId: worker.agent_id }} search={{ session: worker.session_id, view: 'recorder', ...(step.type === SHADOW ? {} : { at: step.step_id }) }} className="button small">
          Open in the flight recorder
        </Link>
        {step.ref && (step.kind === 'ticket' || step.kind === 'notification') && (
          <Link to="/tickets/$ticketId" params={{ ticketId: step.ref }} className="button small">
            Open the ticket
          </Link>
        )}
      </div>
    </div>
  )
}
