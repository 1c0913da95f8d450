/** The position of a node. */
export interface Placed {
  id: string
  x: number
  y: number
}

export interface Layout {
  nodes: Placed[]
  width: number
  height: number
}

export const NODE = { width: 150, height: 44, gapX: 56, gapY: 18 } as const

/**
 * Place the nodes of a graph in columns, from left to right: each as far right as its longest path from an
 * entry, ignoring cycles.
 */
export function layout(ids: readonly string[], edges: readonly { source: string; target: string }[], entries: readonly string[]): Layout {
  const knownIds = new Set(ids)
  const next = new Map<string, string[]>()
  for (const { source, target } of edges) if (knownIds.has(source) && knownIds.has(target)) next.set(source, [...(next.get(source) ?? []), target])
  const column = new Map<string, number>()
  const starts = entries.filter((id) => knownIds.has(id))
  const walk = (id: string, at: number, trail: ReadonlySet<string>): void => {
    if (trail.has(id) || at > ids.length || (column.get(id) ?? -1) >= at) return
    column.set(id, at)
    for (const target of next.get(id) ?? []) walk(target, at + 1, new Set([...trail, id]))
  }
  for (const id of starts.length ? starts : ids.slice(0, 1)) walk(id, 0, new Set())
  for (const id of ids) if (!column.has(id)) walk(id, 0, new Set())
  const columns: string[][] = []
  for (const id of ids) (columns[column.get(id) ?? 0] ??= []).push(id)
  const tallest = Math.max(1, ...columns.map((nodeIds) => nodeIds?.length ?? 0))
  const height = tallest * (NODE.height + NODE.gapY) - NODE.gapY
  const nodes = columns.flatMap((nodeIds, x) => {
    const top = (height - (nodeIds.length * (NODE.height + NODE.gapY) - NODE.gapY)) / 2
    return nodeIds.map((id, y) => ({ id, x: x * (NODE.width + NODE.gapX), y: top + y * (NODE.height + NODE.gapY) }))
  })
  return { nodes, width: columns.length * (NODE.width + NODE.gapX) - NODE.gapX, height }
}
