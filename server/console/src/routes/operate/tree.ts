/** A setting of `queenright.yaml`, with its dotted name. */
export interface Setting {
  name: string
  value: string
}

/** List all settings of a tree by dotted name. A list or an empty object is one value. */
export function flatten(tree: Record<string, unknown>, prefix = ''): Setting[] {
  return Object.entries(tree).flatMap(([key, value]) => {
    const name = prefix ? `${prefix}.${key}` : key
    if (value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length) return flatten(value as Record<string, unknown>, name)
    return [{ name, value: typeof value === 'string' ? value : JSON.stringify(value) }]
  })
}

/** Return whether a setting, or a block that contains it, is reloadable. */
export const isReloadable = (name: string, reloadable: readonly string[]): boolean => reloadable.some((block) => name === block || name.startsWith(`${block}.`))
