import type { Query } from '@tanstack/react-query'
import { useIsFetching, useQueryClient } from '@tanstack/react-query'
import { useRouter, useRouterState } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { useEffect, useState } from 'react'
import { Loading } from '../ui/basics'

/** Milliseconds after which a page is shown although some data is still loading. */
const MAX_WAIT_MILLISECONDS = 2000

/** A page waits for first fetches. It does not wait for retries, which may take long. */
const FIRST_FETCH = { predicate: ({ state }: Query) => state.status === 'pending' && state.fetchFailureCount === 0 }

/**
 * A page whose parts appear together, so that no part moves another. It stays invisible until all its data
 * has loaded.
 *
 * @param page The path of the page. Data that loads later on the same page appears in place.
 */
export function Settled({ page, children }: { page: string; children: ReactNode }) {
  const queries = useQueryClient()
  const router = useRouter()
  const [shown, setShown] = useState('')
  const isBusy = useIsFetching(FIRST_FETCH) > 0
  const isRouting = useRouterState({ select: ({ isLoading }) => isLoading })
  const isShown = shown === page
  useEffect(() => {
    if (isShown || isBusy || isRouting) return
    const timer = setTimeout(() => {
      // A part that has just appeared may fetch more data.
      if (!router.state.isLoading && !queries.isFetching(FIRST_FETCH)) setShown(page)
    })
    return () => clearTimeout(timer)
  })
  useEffect(() => {
    const timer = setTimeout(() => setShown(page), MAX_WAIT_MILLISECONDS)
    return () => clearTimeout(timer)
  }, [page])
  return (
    <>
      {!isShown && (
        <div className="unsettled-over">
          <Loading rows={8} />
        </div>
      )}
      <div className={isShown ? undefined : 'unsettled'}>{children}</div>
    </>
  )
}
