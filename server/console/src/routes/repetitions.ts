/** Split a text into sentences. */
const splitSentences = (text: string): string[] => text.split(/(?<=[.!?])\s+|\n+/).filter((sentence) => sentence.trim())

const normalize = (sentence: string): string => sentence.toLowerCase().replace(/[\s.!?]+/g, ' ').trim()

/** Remove the sentences of a text that earlier texts contain. A text without repetitions keeps its lines. */
export function removeRepeated(text: string, shown: readonly string[]): string {
  const earlier = shown.map((one) => splitSentences(one).map(normalize).join(' ')).join('\n')
  const all = splitSentences(text)
  const remaining = all.filter((sentence) => !earlier.includes(normalize(sentence)))
  return remaining.length === all.length ? text : remaining.join(' ')
}

/** Remove repeated sentences from labelled texts, and drop texts that become empty. */
export function removeRepetitions(parts: readonly (readonly [string, string | null | undefined])[]): [string, string][] {
  const shown: string[] = []
  const found: [string, string][] = []
  for (const [label, text] of parts) {
    const remaining = removeRepeated(text ?? '', shown)
    if (text) shown.push(text)
    if (remaining.trim()) found.push([label, remaining])
  }
  return found
}
