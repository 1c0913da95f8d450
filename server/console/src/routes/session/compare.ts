import type { FiredFinding, Moment } from '../../api/schema'

/** When a detector fired, with the thresholds in force and with others. */
export interface Difference {
  kind: string
  before: FiredFinding | undefined
  after: FiredFinding | undefined
  /** Seconds by which it fires later; null if one of the two did not fire. */
  later: number | null
}

/** Compare when each detector first fired in two evaluations, in order of time. */
export function compareFired(before: readonly FiredFinding[], after: readonly FiredFinding[]): readonly Difference[] {
  const first = (fired: readonly FiredFinding[], kind: string): FiredFinding | undefined => fired.filter((finding) => finding.kind === kind).sort((a, b) => a.at - b.at)[0]
  const kinds = [...new Set([...before, ...after].map((finding) => finding.kind))]
  return kinds
    .map((kind) => {
      const [old, current] = [first(before, kind), first(after, kind)]
      return { kind, before: old, after: current, later: old && current ? current.at - old.at : null }
    })
    .sort((a, b) => (a.before ?? a.after!).at - (b.before ?? b.after!).at)
}

/** Read thresholds from the URL: `loops.window:20,stall.seconds:60`. */
export function readSettings(text: string | undefined): Record<string, number> {
  const settings: Record<string, number> = {}
  for (const part of text?.split(',') ?? []) {
    const [name, value] = part.split(':')
    if (name && value && Number.isFinite(Number(value))) settings[name] = Number(value)
  }
  return settings
}

export const writeSettings = (settings: Readonly<Record<string, number>>): string =>
  Object.entries(settings)
    .map(([name, value]) => `${name}:${value}`)
    .join(',')

/** Return why a threshold is invalid, with the allowed range; empty if it is valid. */
export function thresholdFault(text: string, minimum: number | null, maximum: number | null, isWhole: boolean): string {
  const value = Number(text)
  const allowed = minimum !== null && maximum !== null ? `${minimum} to ${maximum}` : minimum !== null ? `at least ${minimum}` : maximum !== null ? `at most ${maximum}` : 'any number'
  if (text.trim() === '' || !Number.isFinite(value)) return `a number is required, ${allowed}.`
  if ((minimum !== null && value < minimum) || (maximum !== null && value > maximum)) return `${text} is not allowed; enter ${allowed}.`
  return isWhole && !Number.isInteger(value) ? 'it must be a whole number.' : ''
}

/** The range of a slider around the usual value, within the allowed range. */
export function sliderRange(usual: number, minimum: number | null, maximum: number | null): [number, number] {
  if (usual <= 0) return [minimum ?? 0, maximum ?? 10]
  return [Math.max(minimum ?? 0, usual / 20), Math.min(maximum ?? Infinity, usual * 20)]
}

/** Steps of a slider. A wide range is logarithmic. */
export const SLIDER = 1000

const isWide = (minimum: number, maximum: number): boolean => minimum > 0 && maximum / minimum > 20

/** The position of a value on a slider, from 0 to SLIDER. */
export function toSlider(value: number, minimum: number, maximum: number): number {
  if (maximum <= minimum) return 0
  const share = isWide(minimum, maximum) ? Math.log(value / minimum) / Math.log(maximum / minimum) : (value - minimum) / (maximum - minimum)
  return Math.round(Math.max(0, Math.min(1, share)) * SLIDER)
}

/** The value at a position of a slider, rounded to two digits. */
export function fromSlider(position: number, minimum: number, maximum: number, isWhole: boolean): number {
  const share = position / SLIDER
  if (share <= 0 || share >= 1) return share <= 0 ? minimum : maximum
  const value = isWide(minimum, maximum) ? minimum * (maximum / minimum) ** share : minimum + share * (maximum - minimum)
  const rounded = Number(value.toPrecision(2))
  return Math.max(minimum, Math.min(maximum, isWhole ? Math.round(rounded) : rounded))
}

type Place = Pick<Moment, 'step_id' | 'at'>

/** The index of the moment of a step: its own, otherwise the last one before its time. */
export function findStepMoment(moments: readonly Place[], stepId: string | undefined, at: number | undefined): number {
  const exact = moments.findLastIndex((moment) => moment.step_id === stepId)
  if (exact >= 0 || at === undefined) return exact
  return Math.max(0, moments.findLastIndex((moment) => moment.at <= at))
}

/** The index of the moment of a step at a time. A step has several moments between start and end. */
export function findMoment(moments: readonly Place[], { step_id, at }: Place): number {
  const exact = moments.findIndex((moment) => moment.step_id === step_id && moment.at === at)
  return exact >= 0 ? exact : findStepMoment(moments, step_id, at)
}

/** A moment in a URL: `STEP~TIME`. A step in a URL has no time. */
export const momentAddress = ({ step_id, at }: Place): string => `${step_id}~${at}`

/** Read the step in a URL, and its time if present. */
export function readAddress(address: string | undefined): Partial<Place> {
  const [, step_id, at] = /^(.*?)(?:~(\d+(?:\.\d+)?))?$/s.exec(address ?? '')!
  return { step_id, at: at === undefined ? undefined : Number(at) }
}
