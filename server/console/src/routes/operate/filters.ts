import { useNavigate, useSearch } from '@tanstack/react-router'
import { isTyping } from '../../ui/filters'

type Filters = Partial<Record<'search' | 'state' | 'agent' | 'type', string>>

/** The filters in the URL, and a function that changes them. */
export function useFilters(): [Filters, (next: Filters) => void] {
  const filters = useSearch({ from: '/operate/$section' })
  const navigate = useNavigate({ from: '/operate/$section' })
  return [filters, (next) => void navigate({ search: (before) => ({ ...before, ...next }), replace: isTyping(filters.search, next.search) || isTyping(filters.agent, next.agent), resetScroll: false })]
}
