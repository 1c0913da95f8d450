/** The sentences of a text. */
const sentences = (text: string): string[] => text.split(/(?<=[.!?])\s+|\n+/).filter((sentence) => sentence.trim())

const plain = (sentence: string): string => sentence.toLowerCase().replace(/[\s.!?]+/g, ' ').trim()

/** Labelled texts without what an earlier one says already, and without those that are empty then. */
export function distinct(parts: readonly (readonly [string, string | null | undefined])[]): [string, string][] {
  let said = ''
  const found: [string, string][] = []
  for (const [label, text] of parts) {
    const all = sentences(text ?? '')
    const fresh = all.filter((sentence) => !said.includes(plain(sentence)))
    said += ` ${all.map(plain).join(' ')}`
    // A text of which nothing is repeated keeps its lines.
    if (fresh.length) found.push([label, fresh.length === all.length ? (text ?? '') : fresh.join(' ')])
  }
  return found
}
