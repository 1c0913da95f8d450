import { useQuery } from '@tanstack/react-query'
import { useEffect, useRef } from 'react'
import { data, GET } from '../api/client'
import { sessionQuery } from '../api/loaded'
import { Loading, ReadError } from '../ui/basics'
import { layout, NODE } from './graph-layout'

/** The graph of an agent, with running nodes, nodes that wait for a user, and the path of a session. */
export function Graph({ agentId, graphId, session }: { agentId: string; graphId: string; session: string }) {
  const runs = useQuery(sessionQuery(agentId, session)).data?.runs ?? []
  const scroller = useRef<HTMLDivElement>(null)
  const result = useQuery({
    queryKey: ['agent', agentId, 'graph', graphId],
    queryFn: async () => {
      const path = { agent_id: agentId, graph_id: graphId }
      const { nodes } = await data(GET('/api/agents/{agent_id}/graphs/{graph_id}/nodes', { params: { path, query: { limit: 200 } } }))
      return Promise.all(nodes.map((node) => data(GET('/api/agents/{agent_id}/graphs/{graph_id}/nodes/{node_id}', { params: { path: { ...path, node_id: node.node_id } } }))))
    },
  })
  const activeId = result.data?.find((node) => node.running || node.waiting_for_user)?.node_id
  useEffect(() => {
    if (activeId) scroller.current?.querySelector('.running, .waits')?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  }, [activeId])
  if (result.error) return <ReadError error={result.error} retry={() => void result.refetch()} />
  if (!result.data) return <Loading />
  const nodes = result.data
  const edges = nodes.flatMap((node) => node.edges_out)
  const picture = layout(nodes.map((node) => node.node_id), edges, nodes.filter((node) => node.entry_points.length).map((node) => node.node_id))
  const positions = new Map(picture.nodes.map((node) => [node.id, node]))
  const active = nodes.filter((node) => node.running || node.waiting_for_user)
  const summary = active.length ? active.map((node) => `${node.node_id} ${node.waiting_for_user ? 'waits for a user' : 'is running'}`).join(', ') : 'no node is running'
  const visited = new Set(runs.filter((run) => run.graph_id === graphId).flatMap((run) => run.path))
  return (
    <div ref={scroller} className="graph" role="group" aria-label={`Graph ${graphId}`} tabIndex={0}>
      <svg width={picture.width + 4} height={picture.height + 44} viewBox={`-2 -22 ${picture.width + 4} ${picture.height + 44}`} role="img" aria-label={`${summary}${visited.size ? `; completed: ${[...visited].join(', ')}` : ''}`}>
        {edges.map((edge) => {
          const from = positions.get(edge.source)
          const to = positions.get(edge.target)
          if (!from || !to) return null
          const forward = to.x > from.x
          const y = [from.y + NODE.height / 2, to.y + NODE.height / 2] as const
          const x = [from.x + NODE.width, to.x - 6] as const
          const middle = (x[0] + x[1]) / 2
          const line = forward
            ? `M${x[0]} ${y[0]}C${middle} ${y[0]} ${middle} ${y[1]} ${x[1]} ${y[1]}`
            : `M${from.x + NODE.width / 2} ${from.y}C${from.x + NODE.width / 2} ${from.y - 26} ${to.x + NODE.width / 2} ${to.y - 26} ${to.x + NODE.width / 2} ${to.y - 6}`
          const head = forward ? `M${x[1]} ${y[1] - 4}l6 4-6 4z` : `M${to.x + NODE.width / 2 - 4} ${to.y - 6}l4 6 4-6z`
          return (
            <g key={edge.edge_id} className={visited.has(edge.source) && visited.has(edge.target) ? 'visited' : ''}>
              <title>{`${edge.source} to ${edge.target}: ${edge.when}${edge.expression ? `, ${edge.expression}` : ''}`}</title>
              <path className="edge" d={line} />
              <path className="head" d={head} />
            </g>
          )
        })}
        {nodes.map((node) => {
          const at = positions.get(node.node_id)
          if (!at) return null
          return (
            <g key={node.node_id} transform={`translate(${at.x} ${at.y})`} className={node.waiting_for_user ? 'waits' : node.running ? 'running' : visited.has(node.node_id) ? 'visited' : ''}>
              <title>{node.description || node.node_id}</title>
              <rect width={NODE.width} height={NODE.height} rx="8" />
              <text x="10" y="19">
                {node.node_id.length > 19 ? `${node.node_id.slice(0, 18)}…` : node.node_id}
              </text>
              <text x="10" y="34" className="kind">
                {node.waiting_for_user ? 'waits for a user' : node.running ? 'running' : node.client_facing ? 'talks with a user' : node.node_type.replace('_', ' ')}
              </text>
            </g>
          )
        })}
      </svg>
    </div>
  )
}
