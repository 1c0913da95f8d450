import { useSyncExternalStore } from 'react'
import { currentConnection, subscribe } from './api/watch'

/*
 * One clock for the page, so that its ages change together. It stands still while the connection is lost:
 * an age that goes on would claim knowledge that nobody has.
 */

let now = Math.floor(Date.now() / 1000)
const listeners = new Set<() => void>()
let timer: ReturnType<typeof setTimeout> | undefined

function tick(): void {
  const { lostAt } = currentConnection()
  const next = Math.floor(lostAt ?? Date.now() / 1000)
  if (next === now || document.hidden) return
  now = next
  for (const listener of listeners) listener()
}

/** Tick when a second begins: a clock that ticks within it would be late by up to two. */
function run(): void {
  tick()
  timer = setTimeout(run, 1000 - (Date.now() % 1000))
}

function listen(listener: () => void): () => void {
  listeners.add(listener)
  const unsubscribe = subscribe(tick)
  if (timer === undefined) run()
  return () => {
    listeners.delete(listener)
    unsubscribe()
    if (!listeners.size) {
      clearTimeout(timer)
      timer = undefined
    }
  }
}

/** The time, Unix seconds; renders again each second. */
export const useNow = (): number => useSyncExternalStore(listen, () => now)
