import { expect, test } from 'vitest'
import { createFields, readInput } from './input-form'

const schema = {
  properties: {
    folder: { type: 'string', description: 'Where the pages are.', examples: ['docs'] },
    speed: { type: 'string', enum: ['fast', 'slow'] },
    times: { type: 'integer', minimum: 1, default: 3 },
    share: { anyOf: [{ type: 'number' }, { type: 'null' }] },
    dry: { type: 'boolean', default: false },
    pages: { type: 'array' },
    any: {},
  },
  required: ['folder', 'speed', 'pages'],
}

test('field has the type and description of its property', () => {
  expect(createFields(schema)).toMatchObject([
    { name: 'folder', required: true, multiline: true, hint: 'Where the pages are. Such as docs.' },
    { name: 'speed', required: true, options: [{ value: 'fast', label: 'fast' }, { value: 'slow', label: 'slow' }] },
    { name: 'times', required: false, type: 'number', step: 1, min: 1, value: '3' },
    { name: 'share', required: false, type: 'number', step: 'any' },
    { name: 'dry', type: 'checkbox', value: 'false' },
    { name: 'pages', required: true, multiline: true, hint: 'A JSON list, such as ["a", "b"].' },
    { name: 'any', multiline: true, hint: 'Text, or JSON such as ["a", "b"].' },
  ])
})

test('values have the types of their properties; empty fields are omitted', () => {
  const values = { folder: '12', speed: 'slow', times: '4', share: '', dry: 'true', pages: '["a"]', any: '{"x": 1}' }
  expect(readInput(schema, values)).toEqual({ folder: '12', speed: 'slow', times: 4, dry: true, pages: ['a'], any: { x: 1 } })
  expect(readInput(schema, { any: 'no JSON' })).toEqual({ any: 'no JSON', dry: false })
})

test('value of the wrong type is an error of its field', () => {
  expect(() => readInput(schema, { pages: 'a, b' })).toThrow(expect.objectContaining({ field: 'pages', message: 'This is not a JSON list, such as ["a", "b"].' }))
  expect(() => readInput(schema, { times: '1.5' })).toThrow(expect.objectContaining({ field: 'times' }))
})
