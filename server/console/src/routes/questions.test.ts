import { expect, test } from 'vitest'
import type { MessageRow } from '../api/schema'
import { askingCalls, questionIn } from './questions'

const ask = (text: string) => ({ id: 'c1', name: 'ask_user', arguments: text })

test('a call of ask_user is a question', () => {
  expect(questionIn(ask('{"question": " Which one? "}'))).toBe('Which one?')
  expect(questionIn({ ...ask('{"question": "Which one?"}'), name: 'search' })).toBeUndefined()
  expect(questionIn(ask('{"question": 3}'))).toBeUndefined()
  expect(questionIn(ask('{"question": "Wh'))).toBeUndefined()
})

test('the results of questions say nothing', () => {
  const asking: MessageRow = { conversation: 'desk', seq: 1, at: 0, kind: 'user', role: 'assistant', text: '', tool_calls: [ask('{"question": "Which one?"}')], tool_call_id: '' }
  expect(askingCalls([asking])).toEqual(new Set(['c1']))
})
