import { expect, test } from 'vitest'
import { createAxis } from './evidence'
import { axisLabels } from './overview'

test('each time label appears once on the axis', () => {
  const labels = axisLabels(createAxis([1000, 1000.2, 1000.4, 1001.4])).map(({ label }) => label)
  const visibleLabels = labels.filter(Boolean)
  expect(new Set(visibleLabels).size).toBe(visibleLabels.length)
  expect(visibleLabels.length).toBeLessThan(5)
  expect(axisLabels(createAxis([0, 100, 200, 300, 400])).map(({ label }) => label).filter(Boolean)).toHaveLength(5)
})
