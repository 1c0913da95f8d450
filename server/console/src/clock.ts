import { useSyncExternalStore } from 'react'
import { currentConnection, subscribe } from './api/watch'

/*
 * One clock for the page, so that its ages change together. It stands still while the connection is lost:
 * an age that goes on would claim knowledge that nobody has.
 */

let now = Math.floor(Date.now() / 1000)
const listeners = new Set<() => void>()
let timer: ReturnType<typeof setInterval> | undefined

function tick(): void {
  const { lostAt } = currentConnection()
  const next = Math.floor(lostAt ?? Date.now() / 1000)
  if (next === now || document.hidden) return
  now = next
  for (const listener of listeners) listener()
}

function listen(listener: () => void): () => void {
  listeners.add(listener)
  const unsubscribe = subscribe(tick)
  timer ??= setInterval(tick, 1000)
  return () => {
    listeners.delete(listener)
    unsubscribe()
    if (!listeners.size) {
      clearInterval(timer)
      timer = undefined
    }
  }
}

/** The time, Unix seconds; renders again each second. */
export const useNow = (): number => useSyncExternalStore(listen, () => now)
