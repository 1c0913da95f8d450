import { useEffect, useState } from 'react'

/** The media query for phones, as in the style sheets. */
export const PHONE = '(max-width: 640px)'

/** Return whether a media query matches. */
export function useMatches(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches)
  useEffect(() => {
    const list = matchMedia(query)
    const change = (): void => setMatches(list.matches)
    list.addEventListener('change', change)
    return () => list.removeEventListener('change', change)
  }, [query])
  return matches
}
