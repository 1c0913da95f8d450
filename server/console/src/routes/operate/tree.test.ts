import { expect, test } from 'vitest'
import { flatten, isReloadable } from './tree'

test('settings have dotted names, and a list is one value', () => {
  const tree = { otlp: { port: 4318, host: null }, judge: { window: { seconds: 60 } }, roots: ['a', 'b'], extra: {} }
  expect(flatten(tree)).toEqual([
    { name: 'otlp.port', value: '4318' },
    { name: 'otlp.host', value: 'null' },
    { name: 'judge.window.seconds', value: '60' },
    { name: 'roots', value: '["a","b"]' },
    { name: 'extra', value: '{}' },
  ])
})

test('settings of a reloadable block are reloadable', () => {
  expect(isReloadable('tickets.rate', ['tickets'])).toBe(true)
  expect(isReloadable('tickets', ['tickets'])).toBe(true)
  expect(isReloadable('tickets_of_old', ['tickets'])).toBe(false)
})
