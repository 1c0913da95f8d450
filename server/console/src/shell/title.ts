import { useEffect } from 'react'

let page = ''
let needCount = 0

function show(): void {
  document.title = `${needCount ? `(${needCount}) ` : ''}${page ? `${page} · ` : ''}Queenright`
}

/** Set the document title to the name of the page, with its agent or ticket. */
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

/** Show the number of items that need a person before the title. */
export function useTitleCount(count: number): void {
  useEffect(() => {
    needCount = count
    show()
  }, [count])
}
