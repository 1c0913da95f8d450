import type { ReactNode } from 'react'
import { useEffect, useState } from 'react'
import { Dialog, Heading } from 'react-aria-components/Dialog'
import { Modal, ModalOverlay } from 'react-aria-components/Modal'
import { RequestError } from '../api/client'
import { useNow } from '../clock'
import { isRepeatedClick } from './toasts'
import { Button } from './basics'

/** A modal dialog. Escape or a click outside closes it. */
export function Sheet({ title, onClose, isBusy = false, children }: { title: string; onClose: () => void; isBusy?: boolean; children: ReactNode }) {
  // React Aria does not restore the focus if the page behind the dialog has changed.
  const [opener] = useState(() => document.activeElement)
  useEffect(
    () => () => {
      const timer = setTimeout(() => {
        if (document.activeElement === document.body && opener instanceof HTMLElement) opener.focus()
      }, 50)
      // A later element may have lost the focus again. This is not handled here.
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
  /** A checkbox is checked if the value is `true`. */
  value?: string
  options?: readonly { value: string; label: string }[]
  onChange?: (value: string) => void
}

/** Thrown when one field of a form is invalid. */
export class FieldError extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(message)
  }
}

/** Return the name of the field of an error, or ''. */
const findField = (fault: unknown): string => (fault instanceof FieldError || fault instanceof RequestError ? (fault.field.split('.').at(-1) ?? '') : '')

/**
 * Confirm an action.
 *
 * @param target The target of the action, with session and incarnation.
 * @param settled Why the action no longer applies; empty while it applies.
 * @param run Performs the action. The dialog closes on success, and shows the error on failure.
 */
export function ConfirmDialog({ title, lead, target, fields = [], confirm, danger, settled = '', run, onClose }: {
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
      const field = fields.find(({ name }) => name === findField(fault))?.name ?? ''
      setError({ field, message: fault instanceof Error ? fault.message : String(fault) })
      setBusy(false)
      // The focused button was disabled in the meantime. Escape closes the dialog only if the focus is in it.
      const selector = field ? `[name="${CSS.escape(field)}"]` : 'input, select, textarea, button'
      form.querySelector<HTMLElement>(selector)?.focus()
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
