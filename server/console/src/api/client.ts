import createClient from 'openapi-fetch'
import type { paths, Problem } from './schema'

/** Thrown when the service refuses a request or cannot be reached. */
export class RequestError extends Error {
  constructor(
    message: string,
    /** The HTTP status; 0 without a response. */
    readonly status: number,
    readonly field = '',
  ) {
    super(message)
  }
}

const client = createClient<paths>({
  baseUrl: '',
  // A slash in an agent's name is part of the name.
  pathSerializer: (path, values) =>
    path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(values[name]))),
})

export const { GET, POST, PUT, DELETE } = client

interface Answer<T> {
  data?: T
  error?: unknown
  response: Response
}

/**
 * Return the data of a response.
 *
 * @throws RequestError if the service refused the request, or cannot be reached.
 */
export async function data<T>(request: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>
  try {
    answer = await request
  } catch {
    throw new RequestError('The service cannot be reached.', 0)
  }
  if (answer.response.ok) return answer.data as T
  if (answer.response.status === 401) signIn()
  const problem = answer.error as Partial<Problem> | undefined
  throw new RequestError(
    problem?.title ?? `The service responded with status ${answer.response.status}.`,
    answer.response.status,
    problem?.field ?? '',
  )
}

/** Open the sign-in page, which leads back here. */
function signIn(): void {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`)
}
