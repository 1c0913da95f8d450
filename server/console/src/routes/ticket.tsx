import { Empty } from '../ui/basics'

export function TicketPage() {
  return <Empty title="ticket" />
}
