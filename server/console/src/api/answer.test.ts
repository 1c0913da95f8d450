import { expect, test } from 'vitest'
import { addPiece } from './answer'
import type { WatchedEvent } from './watch'

const piece = (index: number, text: string, question_id = 'q1'): WatchedEvent => ({
  id: '', type: 'queen_answer_delta', time: 0, agent_id: '', session_id: 'chat_t1', data: { ticket_id: 't1', question_id, index, text },
})

test('pieces are concatenated', () => {
  const answer = [piece(0, 'It '), piece(1, 'repeats '), piece(2, 'one call.')].reduce(addPiece, null)
  expect(answer).toEqual({ questionId: 'q1', text: 'It repeats one call.', next: 3 })
})

test('piece 0 restarts the answer', () => {
  expect([piece(0, 'I will look. '), piece(0, 'It is so.')].reduce(addPiece, null)).toMatchObject({ text: 'It is so.' })
})

test('answer with a missed beginning has no text', () => {
  expect(addPiece(null, piece(3, 'and so on'))).toMatchObject({ text: '', next: -1 })
  expect([piece(0, 'It '), piece(2, 'call.'), piece(3, ' Stop.')].reduce(addPiece, null)).toMatchObject({ text: '' })
  expect([piece(0, 'It '), piece(1, 'is.', 'q2')].reduce(addPiece, null)).toMatchObject({ questionId: 'q2', text: '' })
})
