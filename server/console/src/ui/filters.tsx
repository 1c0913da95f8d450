import { useEffect, useRef, useState } from 'react'
import { Button } from './basics'

/** A search field that changes the URL once typing pauses. */
export function SearchInput({ label, value, onChange, suggestions }: { label: string; value: string; onChange: (value: string) => void; suggestions?: readonly string[] }) {
  const [text, setText] = useState(value)
  const sent = useRef(value)
  useEffect(() => {
    // The URL was changed by other means, such as Back.
    if (value !== sent.current) setText((sent.current = value))
  }, [value])
  useEffect(() => {
    if (text === sent.current) return
    const timer = setTimeout(() => onChange((sent.current = text)), 200)
    return () => clearTimeout(timer)
  })
  const list = suggestions && `suggestions-${label.replaceAll(/\W/g, '-')}`
  return (
    <>
      <input type="search" className="input" aria-label={label} placeholder={label} value={text} list={list} onChange={(event) => setText(event.target.value)} />
      {suggestions && (
        <datalist id={list}>
          {suggestions.map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
      )}
    </>
  )
}

/** Return whether a text in the URL is still being typed, so that Back skips its intermediate values. */
export const isTyping = (before: string | undefined, next: string | undefined): boolean => Boolean(before && next && before !== next)

/** Invalid values in the URL, which are ignored. */
export function Ignored({ values, onRemove }: { values: readonly string[]; onRemove: () => void }) {
  if (!values.length) return null
  return (
    <p className="ignored" role="status">
      Ignored in the URL: {values.join(', ')}.{' '}
      <Button small look="plain" onPress={onRemove}>
        Remove
      </Button>
    </p>
  )
}

/** A select field. The label of the empty value is `any`. */
export function Choice({ label, any = `${label}: any`, value, options, onChange }: { label: string; any?: string; value: string; options: readonly (string | readonly [string, string])[]; onChange: (value: string) => void }) {
  return (
    <select className="input" aria-label={label} value={value} onChange={(event) => onChange(event.target.value)}>
      <option value="">{any}</option>
      {options.map((option) => {
        const [name, text] = typeof option === 'string' ? [option, option] : option
        return (
          <option key={name} value={name}>
            {text}
          </option>
        )
      })}
    </select>
  )
}

/** Keep the current link of a scrollable row of links in view. */
export function useCurrentInView(current: string) {
  const nav = useRef<HTMLElement>(null)
  useEffect(() => {
    const link = nav.current?.querySelector<HTMLElement>('[aria-current]')
    if (nav.current && link) nav.current.scrollLeft = link.offsetLeft - nav.current.offsetLeft - 24
  }, [current])
  return nav
}
