import type { WatchedEvent } from './watch'

/** An answer that the queen is writing. */
export interface StreamedAnswer {
  questionId: string
  text: string
  /** Index of the next piece; -1 if a piece is missing. */
  next: number
}

/** Add the piece in a `queen_answer_delta` event. Piece 0 restarts the answer. */
export function addPiece(answer: StreamedAnswer | null, { data }: WatchedEvent): StreamedAnswer {
  const questionId = String(data.question_id)
  const text = String(data.text)
  if (data.index === 0) return { questionId, text, next: 1 }
  if (answer?.questionId !== questionId || answer.next !== data.index) return { questionId, text: '', next: -1 }
  return { questionId, text: answer.text + text, next: answer.next + 1 }
}
