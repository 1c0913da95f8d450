import { Link } from '@tanstack/react-router'
import type { ErrorComponentProps } from '@tanstack/react-router'
import { Button, Empty } from '../ui/basics'

export function NotFound() {
  return (
    <Empty title="There is no such page">
      <Link to="/" className="link">
        Go to the fleet
      </Link>
    </Empty>
  )
}

export function RouteError({ error, reset }: ErrorComponentProps) {
  return (
    <Empty title="This page could not be shown">
      <p className="muted">{error instanceof Error ? error.message : String(error)}</p>
      <Button onPress={reset}>Try again</Button>
    </Empty>
  )
}
