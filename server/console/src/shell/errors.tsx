import { Link, useLocation } from '@tanstack/react-router'
import type { ErrorComponentProps } from '@tanstack/react-router'
import { Button, Empty } from '../ui/basics'

export function NotFound() {
  useLocation()
  return (
    <Empty isPage title="There is no such page">
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

export function RouteError({ error, reset }: ErrorComponentProps) {
  return (
    <Empty isPage title="This page could not be shown">
      <p className="muted">{error instanceof Error ? error.message : String(error)}</p>
      <Button onPress={reset}>Try again</Button>
    </Empty>
  )
}
