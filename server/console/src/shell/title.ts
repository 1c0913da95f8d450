import { useEffect } from 'react'

let page = ''
let needs = 0

function show(): void {
  document.title = `${needs ? `(${needs}) ` : ''}${page ? `${page} · ` : ''}Queenright`
}

/** Name the page in the title of the document: what it is, and of which agent or ticket. */
export function useTitle(title: string): void {
  useEffect(() => {
    page = title
    show()
    return () => {
      page = ''
      show()
    }
  }, [title])
}

/** How many items need a person, before the title. */
export function useTitleCount(count: number): void {
  useEffect(() => {
    needs = count
    show()
  }, [count])
}
