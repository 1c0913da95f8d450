// Times are Unix seconds, durations are seconds. Only views format them.

const UNITS: readonly [number, string][] = [
  [86_400, 'd'],
  [3_600, 'h'],
  [60, 'min'],
  [1, 's'],
]

/** A number and its unit, which stay on one line. */
const withUnit = (value: number | string, unit: string): string => `${value}\u00a0${unit}`

/** A duration with at most two units: `42 s`, `3 min`, `2 h 5 min`, `1 d 4 h`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds))
  if (whole < 1) return withUnit(0, 's')
  const first = UNITS.findIndex(([size]) => whole >= size)
  const [size, unit] = UNITS[first]!
  const count = Math.floor(whole / size)
  const next = UNITS[first + 1]
  // Show seconds only below ten minutes, because a list in which all numbers change every second is distracting.
  if (!next || (unit === 'min' && count >= 10)) return withUnit(count, unit)
  const rest = Math.floor((whole % size) / next[0])
  return rest ? `${withUnit(count, unit)} ${withUnit(rest, next[1])}` : withUnit(count, unit)
}

/**
 * Format the time left until a limit.
 *
 * It is rounded up and the elapsed time is rounded down, so that both add up to the limit. If the start is ahead of the
 * page's clock, the whole limit is left.
 */
export const timeLeft = (end: number, now: number, limit: number): string => duration(Math.ceil(Math.min(end - now, limit)))

/** Format an age: `now`, `42 s ago`, `3 min ago`. */
export function ago(at: number, now: number): string {
  const seconds = now - at
  if (seconds < 5) return 'now'
  const [size, unit] = UNITS.find(([size]) => seconds >= size)!
  return `${withUnit(Math.floor(seconds / size), unit)} ago`
}

/** Format the duration of a call: `12 ms`, `3.4 s`, `2 min 5 s`. */
export function took(seconds: number): string {
  if (seconds > 0 && seconds < 0.0005) return '< 1 ms'
  if (seconds < 1) return withUnit(Math.round(seconds * 1000), 'ms')
  return seconds < 10 ? withUnit(seconds.toFixed(1), 's') : duration(seconds)
}

const clockFormat = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })
const dayFormat = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' })

/** The time of day, `14:03:22`. */
export const timeOfDay = (at: number): string => clockFormat.format(at * 1000)

/** Date and time, `26 Nov 2026, 14:03:22`. */
export const dateTime = (at: number): string => dayFormat.format(at * 1000)

const plain = new Intl.NumberFormat('en-US')
const compact = new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 })

/** `950`, `12.4K`, `3.1M`. */
export const count = (value: number): string => (value < 10_000 ? plain.format(value) : compact.format(value))

/** `$0.0031`, `$1.24`, `$1,240`. An unknown amount is an em dash, never zero. */
export function money(value: number | null | undefined): string {
  if (value === null || value === undefined) return '—'
  const digits = value === 0 || value >= 100 ? 0 : value >= 0.01 ? 2 : 4
  return `$${value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits })}`
}

/** `user_input` to `user input`. */
export const words = (name: string): string => name.replaceAll('_', ' ')

/** The first names of a list, and how many more there are: `a`, `a and b`, `a, b and 3 more`. */
export function names(list: readonly string[], more = 0): string {
  const hidden = more + list.slice(2).length
  return hidden ? `${list.slice(0, 2).join(', ')} and ${hidden} more` : list.join(' and ')
}

/** `1 worker`, `3 workers`, `3 entries`. */
export const counted = (value: number, noun: string, plural = `${noun}s`): string => `${count(value)} ${value === 1 ? noun : plural}`
