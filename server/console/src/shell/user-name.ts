const KEY = 'queenright-name'

/** The user name that is recorded with actions; undefined until it is set. */
export const getUserName = (): string | undefined => localStorage.getItem(KEY) ?? undefined

export const setUserName = (name: string): void => localStorage.setItem(KEY, name)

/** The name, as a field of a request. */
export const by = (): { by?: string } => {
  const name = getUserName()
  return name ? { by: name } : {}
}
