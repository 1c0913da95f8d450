import { queryOptions } from '@tanstack/react-query'
import { data, GET, POST, RequestError } from './client'
import type { DetectorClock, DetectorValue, Evaluation, Step, Steps } from './schema'

const PAGE_SIZE = 200
/** The maximum page size of the service. Many small pages take several times as long. */
const MAX_PAGE_SIZE = 1000
/** Maximum pages to read when catching up. If more are missing, only the newest page is read. */
const MAX_CATCH_UP_PAGES = 5

/** The newest steps of a session in the order in which they ended, without a gap. */
export interface Log {
  steps: readonly Step[]
  /** Whether there are older steps, before `first`. */
  more: boolean
  first: string | null
  last: string | null
  /** Work in progress, and the detectors that fire if nothing happens. */
  open: readonly Step[]
  clocks: readonly DetectorClock[]
  /** Values of detectors that fire on an event, nearest to the limit first. */
  counts: readonly DetectorValue[]
}

/** Create a log from one page. */
export const createLog = ({ items, more, first, last, open, clocks, counts }: Steps): Log => ({ steps: items, more, first, last, open, clocks, counts })

/** Add the page after the last known step. Steps that have ended since then move to their new position. */
export function addNewer(log: Log, page: Steps): Log {
  const { open, clocks, counts } = page
  if (!page.items.length) return { ...log, open, clocks, counts }
  const ids = new Set(page.items.map((step) => step.step_id))
  return { ...log, steps: [...log.steps.filter((step) => !ids.has(step.step_id)), ...page.items], last: page.last ?? log.last, open, clocks, counts }
}

/** Add the page before the first known step. */
export function addOlder(log: Log, page: Steps): Log {
  const ids = new Set(log.steps.map((step) => step.step_id))
  return { ...log, steps: [...page.items.filter((step) => !ids.has(step.step_id)), ...log.steps], first: page.first ?? log.first, more: page.more }
}

function readSteps(agentId: string, sessionId: string, cursor: { before?: string; after?: string } = {}, limit = PAGE_SIZE): Promise<Steps> {
  return data(GET('/api/agents/{agent_id}/steps', { params: { path: { agent_id: agentId }, query: { session_id: sessionId, limit, ...cursor } } }))
}

export const stepsQuery = (agentId: string, sessionId: string) =>
  queryOptions({
    queryKey: ['session', sessionId, 'steps', agentId],
    structuralSharing: false,
    queryFn: async ({ client, queryKey }): Promise<Log> => {
      const before = client.getQueryData<Log>(queryKey)
      if (!before?.last) return createLog(await readSteps(agentId, sessionId))
      const pages: Steps[] = []
      try {
        for (let after = before.last; pages.length < MAX_CATCH_UP_PAGES; ) {
          const page = await readSteps(agentId, sessionId, { after })
          pages.push(page)
          // Older steps may have been added in the meantime.
          if (!page.more || !page.last) return pages.reduce(addNewer, client.getQueryData<Log>(queryKey) ?? before)
          after = page.last
        }
      } catch (error) {
        // The log no longer has the last known step.
        if (!(error instanceof RequestError && error.status === 404)) throw error
      }
      return createLog(await readSteps(agentId, sessionId))
    },
  })

/** Read one page of steps before the first step of the log; with `isMaxPage`, a page of the maximum size. */
export const readOlder = (agentId: string, sessionId: string, log: Log, isMaxPage: boolean): Promise<Steps> =>
  readSteps(agentId, sessionId, log.first ? { before: log.first } : {}, isMaxPage ? MAX_PAGE_SIZE : PAGE_SIZE)

/** The value of each detector at each moment of a session, with the given thresholds. */
export const evaluationQuery = (agentId: string, sessionId: string, settings: Readonly<Record<string, number>>) =>
  queryOptions({
    queryKey: ['evaluation', agentId, sessionId, settings],
    queryFn: (): Promise<Evaluation> => data(POST('/api/agents/{agent_id}/evaluation', { params: { path: { agent_id: agentId } }, body: { session_id: sessionId, settings } })),
    structuralSharing: false,
    gcTime: 60_000,
    retry: false,
  })
