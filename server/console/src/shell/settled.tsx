import type { Query } from '@tanstack/react-query'
import { useIsFetching, useQueryClient } from '@tanstack/react-query'
import { useRouter, useRouterState } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { useEffect, useState } from 'react'
import { Loading } from '../ui/basics'

/** Milliseconds after which a page is shown though something is still being read. */
const PATIENCE = 2000

/** What a page waits for: a first reading. One that has failed is tried again, which may take long. */
const first = { predicate: ({ state }: Query) => state.status === 'pending' && state.fetchFailureCount === 0 }

/**
 * A page whose parts appear together, so that none moves another: it is laid out, and not visible, until all of
 * it has been read.
 *
 * @param page Its path. What is read on the same page later appears where it is.
 */
export function Settled({ page, children }: { page: string; children: ReactNode }) {
  const queries = useQueryClient()
  const router = useRouter()
  const [shown, setShown] = useState('')
  const isBusy = useIsFetching(first) > 0
  const isRouting = useRouterState({ select: ({ isLoading }) => isLoading })
  const isShown = shown === page
  useEffect(() => {
    if (isShown || isBusy || isRouting) return
    const timer = setTimeout(() => {
      // A part that has just come may read more.
      if (!router.state.isLoading && !queries.isFetching(first)) setShown(page)
    })
    return () => clearTimeout(timer)
  })
  useEffect(() => {
    const timer = setTimeout(() => setShown(page), PATIENCE)
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
