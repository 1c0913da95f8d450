import type { MessageRow } from '../api/schema'

/** The question in a call of `ask_user`; undefined for other calls, and for arguments that are no question. */
export function questionIn({ name, arguments: text }: { name: string; arguments: string }): string | undefined {
  if (name !== 'ask_user') return undefined
  try {
    const { question } = JSON.parse(text) as { question?: unknown }
    return typeof question === 'string' && question.trim() ? question.trim() : undefined
  } catch {
    return undefined
  }
}

/** Ids of the calls of `ask_user`: their results say nothing. */
export const askingCalls = (messages: readonly MessageRow[]): ReadonlySet<string> =>
  new Set(messages.flatMap((message) => message.tool_calls.filter((call) => questionIn(call)).map((call) => call.id)))
