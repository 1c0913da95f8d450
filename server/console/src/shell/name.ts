const KEY = 'queenright-name'

/** The name that is recorded with what a person does; undefined until it is given. */
export const myName = (): string | undefined => localStorage.getItem(KEY) ?? undefined

export const setMyName = (name: string): void => localStorage.setItem(KEY, name)

/** The name as a request has it. */
export const by = (): { by?: string } => {
  const name = myName()
  return name ? { by: name } : {}
}
