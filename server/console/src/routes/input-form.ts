import { words } from '../format'
import type { Field } from '../ui/dialog'
import { FieldError } from '../ui/dialog'

/** The used part of the JSON schema of an input. */
interface Property {
  type?: string
  enum?: unknown[]
  const?: unknown
  title?: string
  description?: string
  default?: unknown
  examples?: unknown[]
  minimum?: number
  maximum?: number
  anyOf?: Property[]
}

export interface InputSchema {
  properties?: Record<string, Property>
  required?: string[]
}

/** Return the non-null type of a nullable property. */
function resolveNullable(property: Property): Property {
  const others = property.anyOf?.filter((alternative) => alternative.type !== 'null')
  return others?.length === 1 ? { ...property, ...others[0] } : property
}

const listChoices = ({ enum: values, const: value }: Property): unknown[] | undefined => values ?? (value === undefined ? undefined : [value])

const formatValue = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

/** Return the form fields for an input. */
export function createFields({ properties = {}, required = [] }: InputSchema): Field[] {
  return Object.entries(properties).map(([name, declared]) => {
    const property = resolveNullable(declared)
    const isRequired = required.includes(name)
    const { type, minimum, maximum, examples } = property
    const choices = listChoices(property)
    const example = examples?.length ? `Such as ${formatValue(examples[0])}.` : ''
    const field: Field = { name, label: words(name), required: isRequired }
    let kind = ''
    if (choices) {
      field.options = [...(isRequired ? [] : [{ value: '', label: '—' }]), ...choices.map((value) => ({ value: formatValue(value), label: formatValue(value) }))]
    } else if (type === 'boolean') {
      field.type = 'checkbox'
    } else if (type === 'number' || type === 'integer') {
      field.type = 'number'
      field.step = type === 'integer' ? 1 : 'any'
      if (minimum !== undefined) field.min = minimum
      if (maximum !== undefined) field.max = maximum
    } else if (type === 'array' || type === 'object') {
      field.multiline = true
      kind = type === 'array' ? 'A JSON list, such as ["a", "b"].' : 'A JSON object, such as {"name": 1}.'
    } else {
      field.multiline = true
      kind = type === 'string' ? '' : 'Text, or JSON such as ["a", "b"].'
    }
    if (property.default !== undefined && property.default !== null) field.value = formatValue(property.default)
    const hint = [property.description, example, kind].filter(Boolean).join(' ')
    if (hint) field.hint = hint
    return field
  })
}

/**
 * Return the input in a form, without empty fields.
 *
 * @throws FieldError if a value has the wrong type.
 */
export function readInput(schema: InputSchema, values: Readonly<Record<string, string>>): Record<string, unknown> {
  const input: Record<string, unknown> = {}
  for (const [name, declared] of Object.entries(schema.properties ?? {})) {
    const property = resolveNullable(declared)
    const text = values[name] ?? ''
    if (property.type === 'boolean') input[name] = text !== ''
    else if (text !== '') input[name] = parseValue(name, property, text)
  }
  return input
}

function parseValue(name: string, property: Property, text: string): unknown {
  const { type } = property
  const choice = listChoices(property)?.find((value) => formatValue(value) === text)
  if (choice !== undefined) return choice
  if (type === 'string') return text
  if (type === undefined && !/^[[{\d"tfn-]/.test(text)) return text
  try {
    const value: unknown = JSON.parse(text)
    const isOfType = type === undefined || (type === 'array' ? Array.isArray(value) : type === 'integer' ? Number.isInteger(value) : typeof value === type && !Array.isArray(value) && value !== null)
    if (isOfType) return value
  } catch {
    if (type === undefined) return text
  }
  const wanted: Record<string, string> = { array: 'a JSON list, such as ["a", "b"]', object: 'a JSON object, such as {"name": 1}', integer: 'a whole number', number: 'a number' }
  throw new FieldError(name, `This is not ${wanted[type ?? ''] ?? `of the type ${type}`}.`)
}
