/** Split a text into sentences. */
const splitSentences = (text: string): string[] => text.split(/(?<=[.!?])\s+|\n+/).filter((sentence) => sentence.trim())

const normalize = (sentence: string): string => sentence.toLowerCase().replace(/[\s.!?]+/g, ' ').trim()

/** Remove the sentences of a text that earlier texts contain. A text without repetitions keeps its lines. */
export function removeRepeated(text: string, earlierTexts: readonly string[]): string {
  const earlierSentences = earlierTexts.map((earlierText) => splitSentences(earlierText).map(normalize).join(' ')).join('\n')
  const sentences = splitSentences(text)
  const remaining = sentences.filter((sentence) => !earlierSentences.includes(normalize(sentence)))
  return remaining.length === sentences.length ? text : remaining.join(' ')
}

/** Remove repeated sentences from labelled texts, and drop texts that become empty. */
export function removeRepetitions(parts: readonly (readonly [string, string | null | undefined])[]): [string, string][] {
  const earlierTexts: string[] = []
  const remainingParts: [string, string][] = []
  for (const [label, text] of parts) {
    const remaining = removeRepeated(text ?? '', earlierTexts)
    if (text) earlierTexts.push(text)
    if (remaining.trim()) remainingParts.push([label, remaining])
  }
  return remainingParts
}
