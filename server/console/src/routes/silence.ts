const SECONDS: Record<string, number> = { m: 60, min: 60, h: 3600, d: 86_400 }

/** Limits of a silence, in seconds, as the API has them. */
const SHORTEST = 60
const LONGEST = 30 * 86_400

/**
 * The seconds of a duration such as `90m`, `3h`, `1.5 h` or `2d`.
 *
 * @throws Error if it is none, or longer than the API accepts.
 */
export function secondsOf(text: string): number {
  const [, amount, unit] = /^(\d+(?:\.\d+)?)\s*(m|min|h|d)$/.exec(text.trim().toLowerCase()) ?? []
  const seconds = Number(amount) * SECONDS[unit ?? '']!
  if (!(seconds >= SHORTEST && seconds <= LONGEST)) throw new Error(`${text} is not a duration between 1 minute and 30 days; write 90m, 3h or 2d.`)
  return seconds
}
