import { useSyncExternalStore } from 'react'
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

export function Toasts() {
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
 * Run an action and say what happened.
 *
 * @param action Does it, and returns what to say. The lists follow from the event that the service sends.
 */
export function useAct<Input = void>(action: (input: Input) => Promise<string>) {
  return useMutation({
    mutationFn: action,
    onSuccess: (text) => say(text),
    onError: (error) => say(error.message, true),
  })
}
