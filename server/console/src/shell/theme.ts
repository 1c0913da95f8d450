import { useSyncExternalStore } from 'react'

export type Theme = 'system' | 'light' | 'dark'

const KEY = 'queenright-theme'
const dark = matchMedia('(prefers-color-scheme: dark)')
const listeners = new Set<() => void>()

export function chosenTheme(): Theme {
  const stored = localStorage.getItem(KEY)
  return stored === 'light' || stored === 'dark' ? stored : 'system'
}

export function applyTheme(): void {
  const chosen = chosenTheme()
  document.documentElement.dataset.theme = chosen === 'system' ? (dark.matches ? 'dark' : 'light') : chosen
  for (const listener of listeners) listener()
}

export function chooseTheme(theme: Theme): void {
  if (theme === 'system') localStorage.removeItem(KEY)
  else localStorage.setItem(KEY, theme)
  applyTheme()
}

dark.addEventListener('change', applyTheme)

export function useTheme(): Theme {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    chosenTheme,
  )
}
