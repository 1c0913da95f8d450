import { expect, it } from 'vitest'
import type { Step, Steps } from './schema'
import { addNewer, addOlder, createLog } from './steps'

const page = (ids: string[], more = false, phase: Step['phase'] = 'done'): Steps => ({
  session_id: 's', incarnation_id: '', open: [], clocks: [], counts: [], more, first: ids[0] ?? null, last: ids.at(-1) ?? null,
  items: ids.map((step_id) => ({ step_id, phase }) as Step),
})
const ids = (log: { steps: readonly Step[] }): string[] => log.steps.map((step) => step.step_id)

it('moves an ended step to the end of the log', () => {
  const log = addNewer(createLog(page(['1', '2', '3'], true)), page(['4', '2']))
  expect(ids(log)).toEqual(['1', '3', '4', '2'])
  expect(log).toMatchObject({ last: '2', first: '1', more: true })
})

it('keeps the last step if there are no new steps', () => {
  expect(addNewer(createLog(page(['1', '2'])), page([]))).toMatchObject({ last: '2' })
})

it('adds older steps once', () => {
  const log = addOlder(createLog(page(['3', '4'], true)), page(['1', '2', '3']))
  expect(ids(log)).toEqual(['1', '2', '3', '4'])
  expect(log).toMatchObject({ first: '1', last: '4', more: false })
})
