import type { WatchedEvent } from './watch'

/** What the queen has written of an answer. */
export interface StreamedAnswer {
  questionId: string
  text: string
  /** Index of the next piece; -1: a piece is missing. */
  next: number
}

/** Add the piece in a `queen_answer_delta`; piece 0 begins the answer again. */
export function addPiece(known: StreamedAnswer | null, { data }: WatchedEvent): StreamedAnswer {
  const questionId = String(data.question_id)
  const text = String(data.text)
  if (data.index === 0) return { questionId, text, next: 1 }
  if (known?.questionId !== questionId || known.next !== data.index) return { questionId, text: '', next: -1 }
  return { questionId, text: known.text + text, next: known.next + 1 }
}
