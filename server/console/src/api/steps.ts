import { queryOptions } from '@tanstack/react-query'
import { data, GET, POST } from './client'
import type { Evaluation, Step, Steps } from './schema'

/** Steps that one request returns. */
const PAGE = 200
/** Steps that are read again when something has happened. */
const RECENT = 60

/** The newest steps of a session, oldest first, without a gap. */
export interface Log {
  steps: readonly Step[]
  /** There are older ones. */
  more: boolean
  /** Work that is not done, with its clock. */
  open: readonly Step[]
  sessionId: string
}

/** Add the newest page to what is known; null if steps between the two are missing. */
export function addNewest(known: Log, page: Steps): Log | null {
  const log = { open: page.open, sessionId: page.session_id }
  if (!page.more || page.session_id !== known.sessionId) return { ...log, steps: page.items, more: page.more }
  const first = page.items[0]?.step_id
  const from = known.steps.findIndex((step) => step.step_id === first)
  if (from < 0) return null
  return { ...log, steps: [...known.steps.slice(0, from), ...page.items], more: known.more }
}

/** Add the page before what is known. */
export function addOlder(known: Log, page: Steps): Log {
  const ids = new Set(known.steps.map((step) => step.step_id))
  return { ...known, steps: [...page.items.filter((step) => !ids.has(step.step_id)), ...known.steps], more: page.more }
}

/** Replace steps by what is known of them now. */
export function replaceSteps(known: Log, changed: readonly Step[]): Log {
  const byId = new Map(changed.map((step) => [step.step_id, step]))
  return { ...known, steps: known.steps.map((step) => byId.get(step.step_id) ?? step) }
}

/** Steps that were open when they were read, are not in the newest page, and may be over. */
export function unsettled(log: Log, page: Steps): readonly Step[] {
  const current = new Set([...log.open, ...page.items].map((step) => step.step_id))
  return log.steps.filter((step) => step.phase === 'open' && !current.has(step.step_id)).slice(-4)
}

function readSteps(agentId: string, query: { session_id: string; limit: number; before?: string }): Promise<Steps> {
  return data(GET('/api/agents/{agent_id}/steps', { params: { path: { agent_id: agentId }, query } }))
}

export const stepsKey = (agentId: string, sessionId: string) => ['agent', agentId, 'steps', sessionId] as const

export const stepsQuery = (agentId: string, sessionId: string) =>
  queryOptions({
    queryKey: stepsKey(agentId, sessionId),
    structuralSharing: false,
    queryFn: async ({ client, queryKey }): Promise<Log> => {
      const known = (): Log | undefined => client.getQueryData<Log>(queryKey)
      let page = await readSteps(agentId, { session_id: sessionId, limit: known() ? RECENT : PAGE })
      const before = known()
      let log = before && addNewest(before, page)
      if (before && !log) {
        page = await readSteps(agentId, { session_id: sessionId, limit: PAGE })
        log = addNewest(known()!, page)
      }
      // The page alone is shown if more than a page is missing; older steps are read again when they are looked at.
      if (!log) return { steps: page.items, more: page.more, open: page.open, sessionId: page.session_id }
      const isChanged = page.items.some((step) => step.kind !== 'turn' && !before!.steps.includes(step))
      const late = isChanged ? unsettled(log, page) : []
      const changed = await Promise.all(late.map((step) => readAgain(agentId, log.steps, step, sessionId)))
      return replaceSteps(log, changed.flat())
    },
  })

async function readAgain(agentId: string, steps: readonly Step[], step: Step, sessionId: string): Promise<readonly Step[]> {
  const next = steps[steps.indexOf(step) + 1]
  return next ? (await readSteps(agentId, { session_id: sessionId, limit: 1, before: next.step_id })).items : []
}

/** Read the steps before those that are known. */
export const readOlder = (agentId: string, log: Log): Promise<Steps> =>
  readSteps(agentId, { session_id: log.sessionId, limit: PAGE, before: log.steps[0]!.step_id })

/** What each detector held at each moment of a session, with the given thresholds instead of those in force. */
export const evaluationQuery = (agentId: string, sessionId: string, settings: Readonly<Record<string, number>>) =>
  queryOptions({
    queryKey: ['evaluation', agentId, sessionId, settings],
    queryFn: (): Promise<Evaluation> => data(POST('/api/agents/{agent_id}/evaluation', { params: { path: { agent_id: agentId } }, body: { session_id: sessionId, settings } })),
    gcTime: 60_000,
    retry: false,
  })
