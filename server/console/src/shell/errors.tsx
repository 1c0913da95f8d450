import { Link, useLocation } from '@tanstack/react-router'
import type { ErrorComponentProps } from '@tanstack/react-router'
import { useEffect, useState } from 'react'
import { useConnection } from '../api/watch'
import { Button, Empty } from '../ui/basics'

export function NotFound() {
  useLocation()
  return (
    <Empty isPage title="Page not found">
      <p className="wrap">
        Nothing is at <code>{location.pathname}</code>. Search for an agent, a session or a ticket with <kbd>Ctrl</kbd> <kbd>K</kbd>, or go to
      </p>
      <p className="row wraps">
        <Link to="/" className="button primary">
          Fleet
        </Link>
        <Link to="/tickets" search={{}} className="button">
          Tickets
        </Link>
        <Link to="/incidents" className="button">
          Incidents
        </Link>
        <Link to="/operate/$section" params={{ section: 'actions' }} search={{}} className="button">
          Operate
        </Link>
      </p>
    </Empty>
  )
}

const reload = (): void => location.reload()

/** A page that could not be loaded, or that failed. It reloads once the connection is back. */
export function RouteError({ error }: ErrorComponentProps) {
  const isLost = useConnection().state !== 'live'
  const [wasLost, setWasLost] = useState(isLost)
  // The lost connection is detected only after the page could not be loaded.
  if (isLost && !wasLost) setWasLost(true)
  useEffect(() => {
    if (wasLost && !isLost) reload()
  }, [wasLost, isLost])
  return (
    <Empty isPage title="This page could not be shown">
      <p className="muted">{isLost ? 'The service cannot be reached. The page loads when the connection is back.' : error instanceof Error ? error.message : String(error)}</p>
      <Button onPress={reload}>Try again</Button>
    </Empty>
  )
}
