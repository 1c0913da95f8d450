import { expect, test } from 'vitest'
import { layout, NODE } from './graph-layout'

const columnOf = (result: ReturnType<typeof layout>, id: string): number => result.nodes.find((node) => node.id === id)!.x / (NODE.width + NODE.gapX)

test('node is to the right of all its predecessors', () => {
  const result = layout(['a', 'b', 'c', 'd'], [{ source: 'a', target: 'b' }, { source: 'b', target: 'd' }, { source: 'a', target: 'c' }, { source: 'c', target: 'd' }, { source: 'a', target: 'd' }], ['a'])
  expect(['a', 'b', 'c', 'd'].map((id) => columnOf(result, id))).toEqual([0, 1, 1, 2])
  expect(new Set(result.nodes.map((node) => `${node.x}/${node.y}`)).size).toBe(4)
})

test('cycles and unreachable nodes are drawn', () => {
  const result = layout(['a', 'b', 'alone'], [{ source: 'a', target: 'b' }, { source: 'b', target: 'a' }, { source: 'a', target: 'gone' }], ['a'])
  expect(result.nodes.map((node) => node.id).sort()).toEqual(['a', 'alone', 'b'])
})
