import { useEffect, useSyncExternalStore } from 'react'
import { useMutation } from '@tanstack/react-query'
import { Button } from './basics'

interface Toast {
  id: number
  text: string
  failed: boolean
  /** An action that the toast offers. */
  action: { label: string; run: () => void } | undefined
}

let toasts: readonly Toast[] = []
let nextId = 1
const listeners = new Set<() => void>()

function setToasts(next: readonly Toast[]): void {
  toasts = next
  for (const listener of listeners) listener()
}

/** Show a toast. A failure stays until it is closed. */
export function showToast(text: string, failed = false, action?: Toast['action']): void {
  const id = nextId++
  setToasts([...toasts.slice(-3), { id, text, failed, action }])
  if (!failed) setTimeout(() => setToasts(toasts.filter((toast) => toast.id !== id)), 8000)
}

/** The number of consecutive clicks; 0 after a key press. */
let clicks = 0

/**
 * Return whether the current event is not the first click of a double click.
 *
 * The element of the first click may be gone, and the second click hits its replacement.
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
  const currentToasts = useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    () => toasts,
  )
  return (
    <div className="toasts" role="status" aria-live="polite">
      {currentToasts.map((toast) => (
        <div key={toast.id} className={`toast ${toast.failed ? 'failed' : ''}`}>
          <span className="grow">{toast.text}</span>
          {toast.action && (
            <Button small onPress={toast.action.run}>
              {toast.action.label}
            </Button>
          )}
          <Button look="plain" small aria-label="Close the message" onPress={() => setToasts(toasts.filter((other) => other.id !== toast.id))}>
            ✕
          </Button>
        </div>
      ))}
    </div>
  )
}

/**
 * Run an action, and show its result as a toast. A double click runs it once.
 *
 * @param action Performs the action, and returns the text to show. Events of the service update the lists.
 */
export function useAction<Input = void>(action: (input: Input) => Promise<string>) {
  const mutation = useMutation({
    mutationFn: action,
    onSuccess: (text) => showToast(text),
    onError: (error) => showToast(error.message, true),
  })
  return {
    ...mutation,
    mutate: (input: Input): void => {
      if (!mutation.isPending && !isRepeatedClick()) mutation.mutate(input)
    },
  }
}
