import { expect, test } from 'vitest'
import { fieldsOf, inputOf } from './input-form'

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

test('a field is of the type of its property, with its description', () => {
  expect(fieldsOf(schema)).toMatchObject([
    { name: 'folder', required: true, multiline: true, hint: 'Where the pages are. Such as docs.' },
    { name: 'speed', required: true, options: [{ value: 'fast', label: 'fast' }, { value: 'slow', label: 'slow' }] },
    { name: 'times', required: false, type: 'number', step: 1, min: 1, value: '3' },
    { name: 'share', required: false, type: 'number', step: 'any' },
    { name: 'dry', type: 'checkbox', value: 'false' },
    { name: 'pages', required: true, multiline: true, hint: 'A JSON list, such as ["a", "b"].' },
    { name: 'any', multiline: true, hint: 'Text, or JSON such as ["a", "b"].' },
  ])
})

test('values have the types of their properties; empty fields are left out', () => {
  const values = { folder: '12', speed: 'slow', times: '4', share: '', dry: 'true', pages: '["a"]', any: '{"x": 1}' }
  expect(inputOf(schema, values)).toEqual({ folder: '12', speed: 'slow', times: 4, dry: true, pages: ['a'], any: { x: 1 } })
  expect(inputOf(schema, { any: 'no JSON' })).toEqual({ any: 'no JSON', dry: false })
})

test('a value of another type is an error of its field', () => {
  expect(() => inputOf(schema, { pages: 'a, b' })).toThrow(expect.objectContaining({ field: 'pages', message: 'This is not a JSON list, such as ["a", "b"].' }))
  expect(() => inputOf(schema, { times: '1.5' })).toThrow(expect.objectContaining({ field: 'times' }))
})
