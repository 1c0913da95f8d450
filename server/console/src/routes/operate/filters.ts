import { useNavigate, useSearch } from '@tanstack/react-router'

type Filters = Partial<Record<'search' | 'state' | 'agent' | 'type', string>>

/** The filters in the address, and what changes them. */
export function useFilters(): [Filters, (next: Filters) => void] {
  const filters = useSearch({ from: '/operate/$section' })
  const navigate = useNavigate({ from: '/operate/$section' })
  return [filters, (next) => void navigate({ search: (before) => ({ ...before, ...next }), replace: true, resetScroll: false })]
}
