import { useSyncExternalStore } from 'react'
import { currentConnection, subscribe } from './api/watch'

/*
 * One clock for the page, so that all ages change together. It stops while the connection is lost,
 * because a growing age would suggest current data.
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

/** Tick at the start of each second. Otherwise the clock could be up to two seconds late. */
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

/** The current time in Unix seconds. Components rerender each second. */
export const useNow = (): number => useSyncExternalStore(listen, () => now)
