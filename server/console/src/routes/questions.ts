import type { MessageRow } from '../api/schema'

/** Return the question in a call of `ask_user`; undefined for other calls and for invalid arguments. */
export function readQuestion({ name, arguments: text }: { name: string; arguments: string }): string | undefined {
  if (name !== 'ask_user') return undefined
  try {
    const { question } = JSON.parse(text) as { question?: unknown }
    return typeof question === 'string' && question.trim() ? question.trim() : undefined
  } catch {
    return undefined
  }
}

/** Return the ids of calls of `ask_user`, whose results are not shown. */
export const listQuestionCalls = (messages: readonly MessageRow[]): ReadonlySet<string> =>
  new Set(messages.flatMap((message) => message.tool_calls.filter((call) => readQuestion(call)).map((call) => call.id)))
