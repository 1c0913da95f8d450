const KEY = 'queenright-name'

/** The user name that is recorded with actions; undefined until it is set. */
export const getUserName = (): string | undefined => localStorage.getItem(KEY) ?? undefined

export const setUserName = (name: string): void => localStorage.setItem(KEY, name)

/** Return the `by` field of a request; empty without a user name. */
export const getActor = (): { by?: string } => {
  const name = getUserName()
  return name ? { by: name } : {}
}
