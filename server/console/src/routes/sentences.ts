/** The sentences of a text. */
const sentences = (text: string): string[] => text.split(/(?<=[.!?])\s+|\n+/).filter((sentence) => sentence.trim())

const plain = (sentence: string): string => sentence.toLowerCase().replace(/[\s.!?]+/g, ' ').trim()

/** What a text says that the texts shown before it do not; a text of which nothing is repeated keeps its lines. */
export function unsaid(text: string, shown: readonly string[]): string {
  const said = shown.map((one) => sentences(one).map(plain).join(' ')).join('\n')
  const all = sentences(text)
  const fresh = all.filter((sentence) => !said.includes(plain(sentence)))
  return fresh.length === all.length ? text : fresh.join(' ')
}

/** Labelled texts without what an earlier one says already, and without those that are empty then. */
export function distinct(parts: readonly (readonly [string, string | null | undefined])[]): [string, string][] {
  const shown: string[] = []
  const found: [string, string][] = []
  for (const [label, text] of parts) {
    const fresh = unsaid(text ?? '', shown)
    if (text) shown.push(text)
    if (fresh.trim()) found.push([label, fresh])
  }
  return found
}
