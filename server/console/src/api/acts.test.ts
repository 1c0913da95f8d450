import { afterEach, beforeEach, expect, test, vi } from 'vitest'

const say = vi.hoisted(() => vi.fn())
vi.mock('../ui/act', () => ({ say }))
vi.mock('../shell/name', () => ({ by: () => ({}) }))
const POST = vi.hoisted(() => vi.fn())
vi.mock('./client', () => ({ POST, GET: vi.fn(), data: (answer: unknown) => answer, RequestError: Error }))

import { nudgeWorker, terminateWorker } from './acts'

const target = { agentId: 'looper', session_id: 's', incarnation_id: 'i' }

beforeEach(() => say.mockClear())
afterEach(() => POST.mockReset())

test('a nudge that did not arrive is a failure, with its reason', async () => {
  POST.mockResolvedValue({ outcome: 'unreachable', detail: 'The worker does not fetch instructions.' })
  await nudgeWorker({ ...target, message: '' })
  expect(say).toHaveBeenCalledWith('Not done: nudge of looper. The worker does not fetch instructions.', true)
})

test.each(['unreachable', 'refused', 'failed', 'expired', 'dry_run'])('a termination that is %s is a failure', async (outcome) => {
  POST.mockResolvedValue({ outcome, detail: '' })
  await terminateWorker({ ...target, reason: 'r' })
  expect(say).toHaveBeenCalledWith(`Not done: termination of looper. Outcome: ${outcome.replace('_', ' ')}.`, true)
})

test('a termination whose end is not confirmed says so and stays', async () => {
  POST.mockResolvedValue({ outcome: 'unconfirmed', detail: '' })
  await terminateWorker({ ...target, reason: 'r' })
  expect(say).toHaveBeenCalledWith('Not confirmed: termination of looper. Outcome: unconfirmed.', true)
})

test.each(['done', 'started', 'queued'])('a termination that is %s is no failure', async (outcome) => {
  POST.mockResolvedValue({ outcome, detail: '' })
  await terminateWorker({ ...target, reason: 'r' })
  expect(say).toHaveBeenCalledWith(`Termination of looper: ${outcome}.`, false)
})
