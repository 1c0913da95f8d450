import { Empty } from '../ui/basics'

export function SessionPage() {
  return <Empty title="session" />
}
