import './shell.css'
import { useQuery } from '@tanstack/react-query'
import { Link, Outlet, useRouterState } from '@tanstack/react-router'
import { useEffect, useRef, useState } from 'react'
import { attentionQuery } from '../api/queries'
import { useConnection } from '../api/watch'
import { timeOfDay } from '../format'
import { Toasts } from '../ui/toasts'
import { Button } from '../ui/basics'
import { lazyDialog } from '../ui/lazy-dialog'
import { useCurrentInView } from '../ui/filters'
import { Settled } from './settled'
import { useTitleCount } from './title'

const Palette = lazyDialog(() => import('./palette').then((module) => module.default))
const Preferences = lazyDialog(() => import('./preferences').then((module) => module.default))

const PAGES = [
  { to: '/', label: 'Fleet' },
  { to: '/tickets', label: 'Tickets' },
  { to: '/incidents', label: 'Incidents' },
  { to: '/talk', label: 'Talk' },
  { to: '/operate/actions', label: 'Operate' },
  { to: '/connect', label: 'Connect' },
] as const

export function Shell() {
  const [open, setOpen] = useState<'palette' | 'preferences' | null>(null)
  const path = useRouterState({ select: (state) => state.location.pathname })
  const main = useRef<HTMLElement>(null)
  const nav = useCurrentInView(path)

  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.key.toLowerCase() === 'k' && (event.ctrlKey || event.metaKey)) {
        event.preventDefault()
        setOpen('palette')
      }
    }
    addEventListener('keydown', press)
    return () => removeEventListener('keydown', press)
  }, [])

  // Screen readers announce the new page, Tab starts at its content, and scroll keys move it.
  useEffect(() => {
    main.current?.focus({ preventScroll: true })
  }, [path])

  return (
    <div className="frame">
      <a className="skip" href="#content" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <header className="top">
        <Link to="/" className="brand">
          <svg width="20" height="20" viewBox="0 0 16 16" aria-hidden="true">
            <path d="M8 0l7 4v8l-7 4-7-4V4z" />
          </svg>
          Queenright
        </Link>
        <span className="spacer" />
        <nav aria-label="Pages" ref={nav}>
          {PAGES.map(({ to, label }) => {
            const isCurrent = to === '/' ? path === '/' || path.startsWith('/agents/') : path.startsWith(`/${to.split('/')[1]}`)
            return (
              <Link key={to} to={to as '/'} aria-current={isCurrent ? 'page' : undefined}>
                {label}
                {to === '/' && <NeedsYouCount />}
              </Link>
            )
          })}
        </nav>
        <ConnectionState />
        <Button look="plain" className="find" aria-keyshortcuts="Control+K" onPress={() => setOpen('palette')}>
          <svg width="14" height="14" viewBox="0 0 14 14" fill="none" stroke="currentColor" strokeWidth="1.6" aria-hidden="true">
            <circle cx="6" cy="6" r="4.5" />
            <path d="m9.5 9.5 3.5 3.5" />
          </svg>
          <span>Search</span>
          <kbd aria-hidden="true">Ctrl K</kbd>
        </Button>
        <Button look="plain" aria-label="Preferences" onPress={() => setOpen('preferences')}>
          <svg width="16" height="16" viewBox="0 0 16 16" fill="currentColor" aria-hidden="true">
            <circle cx="8" cy="5" r="3" />
            <path d="M2 15c0-3.5 2.7-5.5 6-5.5s6 2 6 5.5z" />
          </svg>
        </Button>
      </header>
      <main id="content" tabIndex={-1} ref={main}>
        <Settled page={path}>
          <Outlet />
        </Settled>
      </main>
      <LostBanner />
      <Toasts />
      {open === 'palette' && <Palette onClose={() => setOpen(null)} />}
      {open === 'preferences' && <Preferences onClose={() => setOpen(null)} />}
    </div>
  )
}

function NeedsYouCount() {
  const total = useQuery(attentionQuery).data?.total
  useTitleCount(total ?? 0)
  if (!total) return null
  return (
    <span className="count" aria-label={`${total} need you`}>
      {total > 99 ? '99+' : total}
    </span>
  )
}

function ConnectionState() {
  const { state } = useConnection()
  const text = { connecting: 'Connecting', live: 'Live', lost: 'Not connected' }[state]
  return (
    <span className={`connection ${state}`} role="status">
      <i aria-hidden="true" />
      <span>{text}</span>
    </span>
  )
}

function LostBanner() {
  const { state, lostAt } = useConnection()
  if (state !== 'lost') return null
  return (
    <div className="banner" role="alert">
      <strong>No connection to the service</strong> since {timeOfDay(lostAt ?? 0)}. The page shows the state of that time and
      updates when the connection is back.
    </div>
  )
}
