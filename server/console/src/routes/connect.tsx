import { Empty } from '../ui/basics'

export function ConnectPage() {
  return <Empty title="connect" />
}
