import { expect, test } from 'vitest'
import type { MessageRow } from '../api/schema'
import { askingCalls, openQuestion, questionIn } from './questions'

const ask = (text: string) => ({ id: 'c1', name: 'ask_user', arguments: text })
const message = (role: MessageRow['role'], tool_calls = [] as ReturnType<typeof ask>[]): MessageRow => ({ conversation: 'desk', seq: 1, at: 0, kind: 'user', role, text: '', tool_calls, tool_call_id: '' })

test('a call of ask_user is a question', () => {
  expect(questionIn(ask('{"question": " Which one? "}'))).toBe('Which one?')
  expect(questionIn({ ...ask('{"question": "Which one?"}'), name: 'search' })).toBeUndefined()
  expect(questionIn(ask('{"question": 3}'))).toBeUndefined()
  expect(questionIn(ask('{"question": "Wh'))).toBeUndefined()
})

test('a question is open until somebody writes', () => {
  const asking = message('assistant', [ask('{"question": "Which one?"}')])
  expect(openQuestion([message('user'), asking, message('tool')])).toBe('Which one?')
  expect(openQuestion([asking, message('tool'), message('user')])).toBeUndefined()
  expect(askingCalls([asking, message('tool')])).toEqual(new Set(['c1']))
})
