import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import type { AgentHealth } from '../../api/schema'
import { addOlder, readOlder, stepsQuery } from '../../api/steps'
import type { Log } from '../../api/steps'
import { showToast } from '../../ui/toasts'

/**
 * Read older pages on request, and automatically until `minSteps` steps are known.
 */
export function useOlder(worker: AgentHealth, log: Log | undefined, minSteps: number) {
  const queries = useQueryClient()
  const [state, setState] = useState<'idle' | 'reading' | 'failed'>('idle')
  const isReading = useRef(false)
  const isShort = log !== undefined && log.more && log.steps.length < minSteps
  async function read(): Promise<void> {
    if (!log?.more || !log.steps.length || isReading.current) return
    isReading.current = true
    setState('reading')
    try {
      const page = await readOlder(worker.agent_id, worker.session_id, log, isShort)
      queries.setQueryData<Log>(stepsQuery(worker.agent_id, worker.session_id).queryKey, (current) => current && addOlder(current, page))
      setState('idle')
    } catch (error) {
      setState('failed')
      showToast(error instanceof Error ? error.message : String(error), true)
    } finally {
      isReading.current = false
    }
  }
  useEffect(() => {
    if (isShort && state === 'idle') void read()
  })
  return { read, state }
}
