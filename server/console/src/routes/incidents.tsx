import { Empty } from '../ui/basics'

export function IncidentsPage() {
  return <Empty title="incidents" />
}
