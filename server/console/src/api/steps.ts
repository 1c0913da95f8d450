import { queryOptions } from '@tanstack/react-query'
import { data, GET, POST, RequestError } from './client'
import type { DetectorClock, DetectorValue, Evaluation, Step, Steps } from './schema'

const PAGE = 200
/** The largest page of the service. Many small pages take several times as long. */
const LARGEST = 1000
/** Pages that are read to catch up; if more is missing, the newest page is read alone. */
const CATCH_UP = 5

/** The newest steps of a session in the order in which they ended, without a gap. */
export interface Log {
  steps: readonly Step[]
  /** There are older ones, before `first`. */
  more: boolean
  first: string | null
  last: string | null
  /** What the worker does now, and the detectors that fire if nothing happens. */
  open: readonly Step[]
  clocks: readonly DetectorClock[]
  /** What the detectors count that fire with an event, the one nearest to its limit first. */
  counts: readonly DetectorValue[]
}

/** A log that has one page. */
export const logOf = ({ items, more, first, last, open, clocks, counts }: Steps): Log => ({ steps: items, more, first, last, open, clocks, counts })

/** Add a page that was read after the last known step. A step that has ended since takes its new place. */
export function addNewer(known: Log, page: Steps): Log {
  const { open, clocks, counts } = page
  if (!page.items.length) return { ...known, open, clocks, counts }
  const ids = new Set(page.items.map((step) => step.step_id))
  return { ...known, steps: [...known.steps.filter((step) => !ids.has(step.step_id)), ...page.items], last: page.last ?? known.last, open, clocks, counts }
}

/** Add the page before the first known step. */
export function addOlder(known: Log, page: Steps): Log {
  const ids = new Set(known.steps.map((step) => step.step_id))
  return { ...known, steps: [...page.items.filter((step) => !ids.has(step.step_id)), ...known.steps], first: page.first ?? known.first, more: page.more }
}

function readSteps(agentId: string, sessionId: string, place: { before?: string; after?: string } = {}, limit = PAGE): Promise<Steps> {
  return data(GET('/api/agents/{agent_id}/steps', { params: { path: { agent_id: agentId }, query: { session_id: sessionId, limit, ...place } } }))
}

export const stepsQuery = (agentId: string, sessionId: string) =>
  queryOptions({
    queryKey: ['session', sessionId, 'steps', agentId],
    structuralSharing: false,
    queryFn: async ({ client, queryKey }): Promise<Log> => {
      const before = client.getQueryData<Log>(queryKey)
      if (!before?.last) return logOf(await readSteps(agentId, sessionId))
      const pages: Steps[] = []
      try {
        for (let after = before.last; pages.length < CATCH_UP; ) {
          const page = await readSteps(agentId, sessionId, { after })
          pages.push(page)
          // Older steps may have been added meanwhile.
          if (!page.more || !page.last) return pages.reduce(addNewer, client.getQueryData<Log>(queryKey) ?? before)
          after = page.last
        }
      } catch (error) {
        // The log no longer has the last known step.
        if (!(error instanceof RequestError && error.status === 404)) throw error
      }
      return logOf(await readSteps(agentId, sessionId))
    },
  })

/** Read the steps before those that are known: a page, or the largest one if `isMuch` is missing. */
export const readOlder = (agentId: string, sessionId: string, log: Log, isMuch: boolean): Promise<Steps> =>
  readSteps(agentId, sessionId, log.first ? { before: log.first } : {}, isMuch ? LARGEST : PAGE)

/** What each detector held at each moment of a session, with the given thresholds instead of those in force. */
export const evaluationQuery = (agentId: string, sessionId: string, settings: Readonly<Record<string, number>>) =>
  queryOptions({
    queryKey: ['evaluation', agentId, sessionId, settings],
    queryFn: (): Promise<Evaluation> => data(POST('/api/agents/{agent_id}/evaluation', { params: { path: { agent_id: agentId } }, body: { session_id: sessionId, settings } })),
    structuralSharing: false,
    gcTime: 60_000,
    retry: false,
  })
