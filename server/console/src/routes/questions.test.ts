import { expect, test } from 'vitest'
import type { MessageRow } from '../api/schema'
import { listQuestionCalls, readQuestion } from './questions'

const ask = (text: string) => ({ id: 'c1', name: 'ask_user', arguments: text })

test('call of ask_user is a question', () => {
  expect(readQuestion(ask('{"question": " Which one? "}'))).toBe('Which one?')
  expect(readQuestion({ ...ask('{"question": "Which one?"}'), name: 'search' })).toBeUndefined()
  expect(readQuestion(ask('{"question": 3}'))).toBeUndefined()
  expect(readQuestion(ask('{"question": "Wh'))).toBeUndefined()
})

test('results of questions are recognized', () => {
  const asking: MessageRow = { conversation: 'desk', seq: 1, at: 0, kind: 'user', role: 'assistant', text: '', tool_calls: [ask('{"question": "Which one?"}')], tool_call_id: '' }
  expect(listQuestionCalls([asking])).toEqual(new Set(['c1']))
})
