import { afterEach, beforeEach, expect, test, vi } from 'vitest'

const showToast = vi.hoisted(() => vi.fn())
vi.mock('../ui/toasts', () => ({ showToast }))
vi.mock('../shell/user-name', () => ({ getActor: () => ({}) }))
const POST = vi.hoisted(() => vi.fn())
vi.mock('./client', () => ({ POST, GET: vi.fn(), data: (answer: unknown) => answer, RequestError: Error }))

import { nudgeWorker, terminateWorker } from './worker-actions'

const target = { agentId: 'looper', session_id: 's', incarnation_id: 'i' }

beforeEach(() => showToast.mockClear())
afterEach(() => POST.mockReset())

test('undelivered nudge is shown as a failure with its reason', async () => {
  POST.mockResolvedValue({ outcome: 'unreachable', detail: 'The worker does not fetch instructions.' })
  await nudgeWorker({ ...target, message: '' })
  expect(showToast).toHaveBeenCalledWith('Not carried out: nudge of looper. The worker does not fetch instructions.', true)
})

test.each(['unreachable', 'refused', 'failed', 'expired', 'dry_run'])('termination with outcome %s is shown as a failure', async (outcome) => {
  POST.mockResolvedValue({ outcome, detail: '' })
  await terminateWorker({ ...target, reason: 'r' })
  expect(showToast).toHaveBeenCalledWith(`Not carried out: termination of looper. Outcome: ${outcome.replace('_', ' ')}.`, true)
})

test('unconfirmed termination is shown until it is closed', async () => {
  POST.mockResolvedValue({ outcome: 'unconfirmed', detail: '' })
  await terminateWorker({ ...target, reason: 'r' })
  expect(showToast).toHaveBeenCalledWith('Not confirmed: termination of looper. Outcome: unconfirmed.', true)
})

test.each(['done', 'started', 'queued'])('termination with outcome %s is not shown as a failure', async (outcome) => {
  POST.mockResolvedValue({ outcome, detail: '' })
  await terminateWorker({ ...target, reason: 'r' })
  expect(showToast).toHaveBeenCalledWith(`Termination of looper: ${outcome}.`, false)
})
