import './theme.css'
import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { RequestError } from './api/client'
import { watchSpending } from './api/spending'
import { currentConnection, subscribe, watch } from './api/watch'
import { makeRouter } from './router'
import { applyTheme } from './shell/theme'

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // Events mark queries as stale. Nothing else causes a refetch.
      staleTime: Infinity,
      refetchOnWindowFocus: false,
      refetchOnReconnect: false,
      retry: (failures, error) => failures < 3 && !(error instanceof RequestError && error.status >= 400 && error.status < 500),
    },
  },
})

applyTheme()
watch(queries)
watchSpending()

// Wait for the stream before reading the first lists, so that they are not read twice.
let rendered = false
function render(): void {
  if (rendered) return
  rendered = true
  createRoot(document.getElementById('root')!).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <RouterProvider router={makeRouter(queries)} />
      </QueryClientProvider>
    </StrictMode>,
  )
}
const unsubscribe = subscribe(() => {
  if (currentConnection().state === 'live') {
    unsubscribe()
    render()
  }
})
setTimeout(render, 400)
