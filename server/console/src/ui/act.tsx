import { useEffect, useSyncExternalStore } from 'react'
import { useMutation } from '@tanstack/react-query'
import { Button } from './basics'

interface Toast {
  id: number
  text: string
  failed: boolean
  /** What can be done about it. */
  action: { label: string; run: () => void } | undefined
}

let toasts: readonly Toast[] = []
let nextId = 1
const listeners = new Set<() => void>()

function set(next: readonly Toast[]): void {
  toasts = next
  for (const listener of listeners) listener()
}

/** Say what happened. What failed stays until it is closed. */
export function say(text: string, failed = false, action?: Toast['action']): void {
  const id = nextId++
  set([...toasts.slice(-3), { id, text, failed, action }])
  if (!failed) setTimeout(() => set(toasts.filter((toast) => toast.id !== id)), 8000)
}

/** How often the mouse was clicked in a row; 0 after a key. */
let clicks = 0

/**
 * Whether what is handled is not the first click of a double click.
 *
 * What was clicked first may have gone, and the second click hits what took its place.
 */
export const isRepeatedClick = (): boolean => clicks > 1

function useClickCount(): void {
  useEffect(() => {
    const press = (event: MouseEvent): void => {
      clicks = event.detail
    }
    const key = (): void => {
      clicks = 0
    }
    addEventListener('mousedown', press, true)
    addEventListener('keydown', key, true)
    return () => {
      removeEventListener('mousedown', press, true)
      removeEventListener('keydown', key, true)
    }
  }, [])
}

export function Toasts() {
  useClickCount()
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    () => toasts,
  )
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={`toast ${toast.failed ? 'failed' : ''}`}>
          <span className="grow">{toast.text}</span>
          {toast.action && (
            <Button small onPress={toast.action.run}>
              {toast.action.label}
            </Button>
          )}
          <Button look="plain" small aria-label="Close the message" onPress={() => set(toasts.filter((other) => other.id !== toast.id))}>
            ✕
          </Button>
        </div>
      ))}
    </div>
  )
}

/**
 * Run an action and say what happened. A double click runs it once.
 *
 * @param action Does it, and returns what to say. The lists follow from the event that the service sends.
 */
export function useAct<Input = void>(action: (input: Input) => Promise<string>) {
  const mutation = useMutation({
    mutationFn: action,
    onSuccess: (text) => say(text),
    onError: (error) => say(error.message, true),
  })
  return {
    ...mutation,
    mutate: (input: Input): void => {
      if (!mutation.isPending && !isRepeatedClick()) mutation.mutate(input)
    },
  }
}
