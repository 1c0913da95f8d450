import { Empty } from '../ui/basics'

export function OperatePage() {
  return <Empty title="operate" />
}
