import type { AgentHealth } from '../../api/schema'
export function Recorder({ worker }: { worker: AgentHealth }) {
  return <p>{worker.agent_id}</p>
}
