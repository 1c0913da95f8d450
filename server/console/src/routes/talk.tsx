import { Empty } from '../ui/basics'

export function TalkPage() {
  return <Empty title="talk" />
}
