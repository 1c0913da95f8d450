const SECONDS: Record<string, number> = { m: 60, min: 60, h: 3600, d: 86_400 }

/** Limits of a silence in seconds, as in the API. */
const MIN_SECONDS = 60
const MAX_SECONDS = 30 * 86_400

/**
 * Parse a duration such as `90m`, `3h`, `1.5 h` or `2d`.
 *
 * @throws Error if the text is not a duration, or not within the limits of the API.
 */
export function parseDuration(text: string): number {
  const [, amount, unit] = /^(\d+(?:\.\d+)?)\s*(m|min|h|d)$/.exec(text.trim().toLowerCase()) ?? []
  const seconds = Number(amount) * SECONDS[unit ?? '']!
  if (!(seconds >= MIN_SECONDS && seconds <= MAX_SECONDS)) throw new Error(`${text} is not a duration between 1 minute and 30 days; write 90m, 3h or 2d.`)
  return seconds
}
