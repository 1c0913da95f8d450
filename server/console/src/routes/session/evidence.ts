import type { Finding, Step } from '../../api/schema'
import { SHADOW } from './kinds'

/** A call that was repeated with the same arguments and result. */
export interface Repeat {
  signature: string
  name: string
  count: number
  /** The index of its glyph. */
  glyph: number
}

/** Find repeated calls by signature. Glyphs are assigned in the order in which the calls began to repeat. */
export function findRepeats(steps: readonly Step[]): ReadonlyMap<string, Repeat> {
  const counts = new Map<string, number>()
  const repeats = new Map<string, Repeat>()
  for (const { signature, name } of steps) {
    if (!signature) continue
    const count = (counts.get(signature) ?? 0) + 1
    counts.set(signature, count)
    const repeat = repeats.get(signature)
    if (repeat) repeat.count = count
    else if (count > 1) repeats.set(signature, { signature, name, count, glyph: repeats.size })
  }
  return repeats
}

/** Number the steps of each repeated call, from 1. */
export function numberRepeats(steps: readonly Step[], repeats: ReadonlyMap<string, Repeat>): ReadonlyMap<string, number> {
  const counts = new Map<string, number>()
  const ordinals = new Map<string, number>()
  for (const { signature, step_id } of steps) {
    if (!repeats.has(signature)) continue
    const count = (counts.get(signature) ?? 0) + 1
    counts.set(signature, count)
    ordinals.set(step_id, count)
  }
  return ordinals
}

/** Minimum seconds without activity that get their own row. */
const GAP_SECONDS = 10

/** Find gaps: seconds of silence before steps, if nothing ran then. Steps are in order of their ends. */
export function findGaps(steps: readonly Step[]): ReadonlyMap<string, number> {
  const gaps = new Map<string, number>()
  let earliest = Infinity
  // A long call begins before steps that ended earlier, so iterate backwards: the call covers their gaps.
  for (let index = steps.length - 1; index > 0; index--) {
    const step = steps[index]!
    // The condition of a finding began before it, and is not work.
    earliest = Math.min(earliest, step.phase === 'instant' ? step.at : step.started_at, step.at)
    const seconds = earliest - steps[index - 1]!.at
    if (seconds >= GAP_SECONDS) gaps.set(step.step_id, seconds)
  }
  return gaps
}

/** The period for which the condition of a finding lasted. */
export interface Window {
  kind: string
  severity: string
  from: number
  /** Null while the condition holds. */
  to: number | null
  text: string
  stepId: string
}

const RANK: Record<string, number> = { low: 1, medium: 2, high: 3, critical: 4 }

export const rankOf = (severity: string): number => RANK[severity] ?? 0

/** Find the windows of findings in a timeline, oldest first. A finding that became more severe is one window. */
export function findWindows(steps: readonly Step[], ended: number | null): readonly Window[] {
  const windows: Window[] = []
  const open = new Map<string, Window>()
  for (const { kind, type, name, severity, at, started_at: from, text, step_id: stepId } of steps) {
    if (kind !== 'finding') continue
    let window = open.get(name)
    if (type === 'finding_cleared') {
      if (window) window.to = at
      open.delete(name)
    } else if (window) {
      window.text = text || window.text
      if (rankOf(severity) > rankOf(window.severity)) window.severity = severity
    } else {
      window = { kind: name, severity, from, to: ended === null ? null : Math.max(ended, at), text, stepId }
      windows.push(window)
      open.set(name, window)
    }
  }
  return windows
}

/** The most severe window at a time. */
export function windowAt(windows: readonly Window[], at: number): Window | undefined {
  let worst: Window | undefined
  for (const window of windows) {
    if (at >= window.from && (window.to === null || at < window.to) && rankOf(window.severity) > rankOf(worst?.severity ?? '')) worst = window
  }
  return worst
}

/** A time axis on which pauses are shortened. */
export interface Axis {
  /** The position of a time, from 0 to 1. */
  place: (at: number) => number
  /** The time at a position. */
  time: (place: number) => number
  /** Positions of shortened pauses, with their seconds. */
  breaks: readonly { place: number; seconds: number }[]
}

/**
 * Create the axis of a timeline. A pause takes at most a fifth of the time without pauses.
 *
 * @param times Unix seconds, ascending.
 */
export function createAxis(times: readonly number[]): Axis {
  const from = times[0] ?? 0
  const gaps = times.slice(1).map((at, index) => at - times[index]!)
  const sorted = [...gaps].sort((a, b) => a - b)
  const usual = sorted[Math.floor(sorted.length * 0.9)] ?? 0
  const busy = gaps.reduce((sum, gap) => sum + Math.min(gap, usual * 4), 0)
  const longest = Math.max(busy / 5, usual * 4)
  const shortened = gaps.map((gap) => Math.min(gap, longest))
  const total = shortened.reduce((sum, gap) => sum + gap, 0) || 1
  const places = [0]
  for (const gap of shortened) places.push(places.at(-1)! + gap / total)
  const breaks = gaps.flatMap((seconds, index) => (seconds > longest * 2 ? [{ place: (places[index]! + places[index + 1]!) / 2, seconds }] : []))

  function between(from: readonly number[], to: readonly number[], value: number): number {
    if (from.length < 2 || value <= from[0]!) return to[0] ?? 0
    let low = 0
    let high = from.length - 1
    if (value >= from[high]!) return to[high]!
    while (high - low > 1) {
      const middle = (low + high) >> 1
      if (from[middle]! <= value) low = middle
      else high = middle
    }
    const span = from[high]! - from[low]!
    return to[low]! + (span ? (value - from[low]!) / span : 0) * (to[high]! - to[low]!)
  }
  const axisTimes = times.length ? times : [from]
  return { place: (at) => between(axisTimes, places, at), time: (place) => between(places, axisTimes, place), breaks }
}

/** Add the current findings of shadow detectors, which are not in the log, to steps. */
export function addShadowFindings(steps: readonly Step[], findings: readonly Finding[]): readonly Step[] {
  if (!findings.length) return steps
  const shadows = findings.map((finding): Step => ({
    step_id: `shadow-${finding.kind}`, type: SHADOW, kind: 'finding', phase: 'instant', name: finding.kind, severity: finding.severity, text: finding.evidence,
    at: finding.since, started_at: finding.since, ended_at: finding.since, detail: 'shadow', tokens_in: 0, tokens_out: 0, cost_usd: null,
    signature: '', ref: '', fires_at: null, limit_seconds: null, reason: '',
  }))
  return [...steps, ...shadows].sort((a, b) => a.at - b.at)
}
