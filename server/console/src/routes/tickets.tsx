import { Empty } from '../ui/basics'

export function TicketsPage() {
  return <Empty title="tickets" />
}
