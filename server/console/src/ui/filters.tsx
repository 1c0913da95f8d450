import { useEffect, useRef, useState } from 'react'
import { Button } from './basics'

/** A search field that changes the address once typing pauses. */
export function SearchInput({ label, value, onChange, suggestions }: { label: string; value: string; onChange: (value: string) => void; suggestions?: readonly string[] }) {
  const [text, setText] = useState(value)
  const sent = useRef(value)
  useEffect(() => {
    // The address changed by other means, as by Back.
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

/** Whether a text in the address is still being typed: Back goes to the filters before it, not to each of its parts. */
export const isTyping = (before: string | undefined, next: string | undefined): boolean => Boolean(before && next && before !== next)

/** Values of the address that do not exist, and are ignored. */
export function Ignored({ values, onRemove }: { values: readonly string[]; onRemove: () => void }) {
  if (!values.length) return null
  return (
    <p className="ignored" role="status">
      Ignored in the address: {values.join(', ')}.{' '}
      <Button small look="plain" onPress={onRemove}>
        Remove
      </Button>
    </p>
  )
}

/** A choice among names; an empty value is what `any` says. */
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

/** A row of links that scrolls on a narrow screen: the current one is in view. */
export function useCurrentInView(current: string) {
  const nav = useRef<HTMLElement>(null)
  useEffect(() => {
    const link = nav.current?.querySelector<HTMLElement>('[aria-current]')
    if (nav.current && link) nav.current.scrollLeft = link.offsetLeft - nav.current.offsetLeft - 24
  }, [current])
  return nav
}
