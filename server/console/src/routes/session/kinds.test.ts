import { expect, test } from 'vitest'
import type { Step } from '../../api/schema'
import { stepName } from './kinds'

const state = (name: string, detail = ''): Step => ({ kind: 'state', type: 'health_state_changed', name, detail }) as Step

test('end of a session is not shown as healthy', () => {
  expect([state('healthy', 'failed'), state('healthy'), state('failing', 'failed')].map(stepName)).toEqual(['ended', 'healthy', 'failing'])
})
