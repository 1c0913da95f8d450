import { useMemo } from 'react'
import type { Step } from '../../api/schema'
import { useNow } from '../../clock'
import { counted, dateTime, duration, timeOfDay, words } from '../../format'
import { createAxis } from './evidence'
import type { Axis, Window } from './evidence'

const LANES = [
  { id: 'turns', label: 'Turns', kinds: ['turn'] },
  { id: 'tools', label: 'Tools', kinds: ['tool'] },
  { id: 'waits', label: 'Waits', kinds: ['wait'] },
  { id: 'events', label: 'Events', kinds: ['finding', 'state', 'ticket', 'intervention', 'notification', 'checkpoint', 'started', 'ended'] },
] as const

const WIDTH = 1000
const LANE = 14
const GAP = 4

/** Create the axis of steps from their starts and ends, and the current time if a step is open. */
export function stepAxis(steps: readonly Step[], now: number | null): Axis {
  const times = steps.flatMap((step) => (step.ended_at === null ? [step.started_at] : [step.started_at, step.ended_at]))
  if (now !== null) times.push(now)
  return createAxis(times.sort((a, b) => a - b))
}

/** Labels along an axis. Repeated labels are omitted. */
export function axisLabels(axis: Axis): { place: number; at: number; label: string }[] {
  const labels = [0, 0.25, 0.5, 0.75, 1].map((place) => ({ place, at: axis.time(place), label: timeOfDay(axis.time(place)) }))
  return labels.map((axisLabel, index) => (axisLabel.label === labels[index - 1]?.label ? { ...axisLabel, label: '' } : axisLabel))
}

/** An overview of the timeline. A click selects the nearest step. */
export function Overview({ ended, ...rest }: Omit<Parameters<typeof Picture>[0], 'end'> & { ended: number | null }) {
  return ended === null ? <RunningPicture {...rest} /> : <Picture {...rest} end={ended} />
}

/** The overview of a running session ends now, so open steps grow. */
function RunningPicture(rest: Omit<Parameters<typeof Picture>[0], 'end'>) {
  const now = useNow()
  return <Picture {...rest} end={Math.max(now, rest.steps.at(-1)?.at ?? 0)} />
}

function Picture({ steps, windows, repeated, end, selected, onSelect }: {
  steps: readonly Step[]
  windows: readonly Window[]
  /** Signatures of repeated calls, with their glyphs. */
  repeated: ReadonlyMap<string, { glyph: number }>
  /** The end of the overview, in Unix seconds. */
  end: number
  selected: Step | undefined
  onSelect: (step: Step) => void
}) {
  const axis = useMemo(() => stepAxis(steps, end), [steps, end])
  const bars = useMemo(() => drawBars(steps, repeated, axis, end), [steps, repeated, axis, end])
  if (steps.length < 2) return null
  const height = LANES.length * (LANE + GAP) + GAP
  const from = steps[0]!.started_at
  const days = timeOfDay(from)
  return (
    <div className="overview">
      <div className="overview-lanes muted" aria-hidden="true">
        {LANES.map((lane) => (
          <span key={lane.id}>{lane.label}</span>
        ))}
      </div>
      <div
        className="overview-plot"
        role="img"
        aria-label={`${counted(steps.length, 'entry', 'entries')} from ${days} to ${timeOfDay(end)}${windows.map((window) => `; ${words(window.kind)} from ${timeOfDay(window.from)}${window.to ? ` to ${timeOfDay(window.to)}` : ''}`).join('')}`}
        onClick={(event) => {
          const box = event.currentTarget.getBoundingClientRect()
          const at = axis.time((event.clientX - box.left) / box.width)
          const nearest = steps.reduce((best, step) => (Math.abs(step.at - at) < Math.abs(best.at - at) ? step : best))
          onSelect(nearest)
        }}
      >
        <svg viewBox={`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" height={height} aria-hidden="true">
          {windows.map((window) => {
            const x = axis.place(window.from) * WIDTH
            return <rect key={window.stepId} className={`window severity-${window.severity}`} x={x} y={0} width={Math.max(3, axis.place(window.to ?? end) * WIDTH - x)} height={height} />
          })}
          {axis.breaks.map((pause) => (
            <rect key={pause.place} className="pause" x={pause.place * WIDTH - 1} y={0} width={2} height={height}>
              <title>{`Pause of ${duration(pause.seconds)}, shortened here`}</title>
            </rect>
          ))}
          {bars.map(({ tone, path }) => (
            <path key={tone} className={`bar ${tone}`} d={path} />
          ))}
          {selected && <rect className="cursor" x={axis.place(selected.at) * WIDTH - 1} y={0} width={2} height={height} />}
        </svg>
      </div>
      <div className="overview-axis muted number" aria-hidden="true">
        {axisLabels(axis).map(({ place, at, label }) => (
          <span key={place} title={dateTime(at)}>
            {label}
          </span>
        ))}
      </div>
      {windows.length > 0 && (
        <ul className="overview-windows" aria-label="Findings in the timeline">
          {windows.slice(-4).map((window) => (
            <li key={window.stepId}>
              <button className={`severity-${window.severity}`} title={window.text} onClick={() => onSelect(steps.find((step) => step.step_id === window.stepId)!)}>
                <strong>{words(window.kind)}</strong> <span className="number">{timeOfDay(window.from)} – {window.to === null ? 'now' : timeOfDay(window.to)}</span>
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  )
}

/** Draw one path per colour, so that thousands of steps need few elements. */
function drawBars(steps: readonly Step[], repeated: ReadonlyMap<string, { glyph: number }>, axis: Axis, end: number): { tone: string; path: string }[] {
  const paths = new Map<string, string[]>()
  for (const step of steps) {
    const lane = LANES.findIndex(({ kinds }) => (kinds as readonly string[]).includes(step.kind))
    if (lane < 0) continue
    const instant = step.phase === 'instant'
    const x = axis.place(instant ? step.at : step.started_at) * WIDTH
    const to = instant ? x : axis.place(step.ended_at ?? (step.phase === 'open' ? end : step.at)) * WIDTH
    const width = Math.max(2.2, to - x)
    const y = GAP + lane * (LANE + GAP)
    const repeat = repeated.get(step.signature)
    const tone = step.phase === 'failed' ? 'failed' : repeat ? `repeat-${repeat.glyph % 6}` : step.kind === 'finding' ? `severity-${step.severity}` : step.kind
    let path = paths.get(tone)
    if (!path) paths.set(tone, (path = []))
    path.push(`M${x.toFixed(1)} ${y}h${width.toFixed(1)}v${LANE}h-${width.toFixed(1)}z`)
  }
  return [...paths].map(([tone, path]) => ({ tone, path: path.join('') }))
}
