import type { ReactNode } from 'react'
import { useEffect, useState } from 'react'
import { Dialog, Heading } from 'react-aria-components/Dialog'
import { Modal, ModalOverlay } from 'react-aria-components/Modal'
import { RequestError } from '../api/client'
import { useNow } from '../clock'
import { isRepeatedClick } from './act'
import { Button } from './basics'

/** A modal dialog; Escape and a click outside close it. */
export function Sheet({ title, onClose, isBusy = false, children }: { title: string; onClose: () => void; isBusy?: boolean; children: ReactNode }) {
  // React Aria does not give the focus back if the page behind changed as well.
  const [opener] = useState(() => document.activeElement)
  useEffect(
    () => () => {
      const timer = setTimeout(() => {
        if (document.activeElement === document.body && opener instanceof HTMLElement) opener.focus()
      }, 50)
      // What was focused since then may have lost it again, to nothing: that is another's concern.
      addEventListener('focusin', () => clearTimeout(timer), { once: true, capture: true })
    },
    [opener],
  )
  return (
    <ModalOverlay className="overlay" isOpen isDismissable={!isBusy} isKeyboardDismissDisabled={isBusy} shouldCloseOnInteractOutside={() => !isRepeatedClick()} onOpenChange={(open) => !open && onClose()}>
      <Modal className="modal">
        <Dialog className="dialog">
          <Heading slot="title" level={2}>
            {title}
          </Heading>
          {children}
        </Dialog>
      </Modal>
    </ModalOverlay>
  )
}

export interface Field {
  name: string
  label: string
  hint?: string
  required?: boolean
  multiline?: boolean
  type?: 'number' | 'checkbox'
  min?: number
  max?: number
  step?: number | 'any'
  /** A checkbox is checked by `true`. */
  value?: string
  options?: readonly { value: string; label: string }[]
  onChange?: (value: string) => void
}

/** An error of one field of a form. */
export class FieldError extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(message)
  }
}

/** The name of the field that an error is about. */
const fieldOf = (fault: unknown): string => (fault instanceof FieldError || fault instanceof RequestError ? (fault.field.split('.').at(-1) ?? '') : '')

/**
 * Ask before something is done.
 *
 * @param target What it is done to, with session and incarnation.
 * @param settled What happened meanwhile, after which there is nothing to ask; empty while there is.
 * @param run Does it; the dialog closes when it has succeeded, and shows the error when it has not.
 */
export function Ask({ title, lead, target, fields = [], confirm, danger, settled = '', run, onClose }: {
  title: string
  lead?: ReactNode
  target?: ReactNode
  fields?: readonly Field[]
  confirm: string
  danger?: boolean
  settled?: string
  run: (values: Record<string, string>) => Promise<unknown>
  onClose: () => void
}) {
  const [error, setError] = useState({ field: '', message: '' })
  const [busy, setBusy] = useState(false)
  useNow()
  async function submit(form: HTMLFormElement): Promise<void> {
    setBusy(true)
    setError({ field: '', message: '' })
    try {
      await run(Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()])))
      onClose()
    } catch (fault) {
      const field = fields.find((one) => one.name === fieldOf(fault))?.name ?? ''
      setError({ field, message: fault instanceof Error ? fault.message : String(fault) })
      setBusy(false)
      // The button that had the focus was disabled meanwhile; without the focus in the dialog, Escape does not close it.
      const place = field ? `[name="${CSS.escape(field)}"]` : 'input, select, textarea, button'
      form.querySelector<HTMLElement>(place)?.focus()
    }
  }
  if (settled && !busy)
    return (
      <Sheet title={title} onClose={onClose}>
        {target}
        <p className="notice" role="alert">
          {settled}
        </p>
        <div className="row" style={{ justifyContent: 'flex-end' }}>
          <Button look="primary" onPress={onClose} autoFocus>
            Close
          </Button>
        </div>
      </Sheet>
    )
  return (
    <Sheet title={title} onClose={onClose} isBusy={busy}>
      {lead && <p className="muted">{lead}</p>}
      {target}
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault()
          void submit(event.currentTarget)
        }}
      >
        {fields.map((field, index) => (
          <Entry key={field.name} field={field} isFirst={index === 0} error={error.field === field.name ? error.message : ''} />
        ))}
        {error.message && !error.field && (
          <div className="problem" role="alert">
            {error.message}
          </div>
        )}
        <div className="row" style={{ justifyContent: 'flex-end' }}>
          <Button look="plain" onPress={onClose}>
            Cancel
          </Button>
          <Button type="submit" look={danger ? 'danger' : 'primary'} className={danger ? 'solid' : ''} isDisabled={busy} autoFocus={fields.length === 0}>
            {confirm}
          </Button>
        </div>
      </form>
    </Sheet>
  )
}

/** One field, with its hint and its error below it. */
function Entry({ field, isFirst, error }: { field: Field; isFirst: boolean; error: string }) {
  const id = `ask-${field.name}`
  const described = [field.hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(' ')
  const props = { className: 'input', id, name: field.name, required: field.required, defaultValue: field.value, autoFocus: isFirst, 'aria-describedby': described || undefined, 'aria-invalid': error ? true : undefined }
  const label = (
    <label htmlFor={id}>
      {field.label}
      {!field.required && !field.options && field.type !== 'checkbox' && <span className="muted"> (optional)</span>}
    </label>
  )
  return (
    <div className="field">
      {field.type === 'checkbox' ? (
        <span className="row">
          <input type="checkbox" id={id} name={field.name} value="true" defaultChecked={field.value === 'true'} autoFocus={isFirst} aria-describedby={described || undefined} />
          {label}
        </span>
      ) : (
        <>
          {label}
          {field.options ? (
            <select {...props} autoFocus={false} required={false} onChange={(event) => field.onChange?.(event.target.value)}>
              {field.options.map((option) => (
                <option key={option.value} value={option.value}>
                  {option.label}
                </option>
              ))}
            </select>
          ) : field.multiline ? (
            <textarea {...props} rows={3} />
          ) : (
            <input {...props} type={field.type ?? 'text'} min={field.min} max={field.max} step={field.step} autoComplete="off" />
          )}
        </>
      )}
      {field.hint && (
        <span className="hint" id={`${id}-hint`}>
          {field.hint}
        </span>
      )}
      {error && (
        <span className="field-error" id={`${id}-error`} role="alert">
          {error}
        </span>
      )}
    </div>
  )
}
