/** A setting as in `queenright.yaml`, with the dots of its place. */
export interface Setting {
  name: string
  value: string
}

/** All settings of a tree by dotted name; a list and an empty object are one value. */
export function flatten(tree: Record<string, unknown>, place = ''): Setting[] {
  return Object.entries(tree).flatMap(([key, value]) => {
    const name = place ? `${place}.${key}` : key
    if (value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length) return flatten(value as Record<string, unknown>, name)
    return [{ name, value: typeof value === 'string' ? value : JSON.stringify(value) }]
  })
}

/** Whether a setting changes with a reload: itself, or the part of the tree that it is in. */
export const isReloadable = (name: string, reloadable: readonly string[]): boolean => reloadable.some((one) => name === one || name.startsWith(`${one}.`))
