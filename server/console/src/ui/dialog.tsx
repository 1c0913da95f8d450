import type { ReactNode } from 'react'
import { useState } from 'react'
import { Dialog, Heading } from 'react-aria-components/Dialog'
import { Modal, ModalOverlay } from 'react-aria-components/Modal'
import { useNow } from '../clock'
import { Button } from './basics'

/** A modal dialog; Escape and a click outside close it. */
export function Sheet({ title, onClose, isBusy = false, children }: { title: string; onClose: () => void; isBusy?: boolean; children: ReactNode }) {
  return (
    <ModalOverlay className="overlay" isOpen isDismissable={!isBusy} isKeyboardDismissDisabled={isBusy} onOpenChange={(open) => !open && onClose()}>
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
  value?: string
  options?: readonly { value: string; label: string }[]
  onChange?: (value: string) => void
}

/**
 * Ask before something is done.
 *
 * @param target What it is done to, with session and incarnation.
 * @param run Does it; the dialog closes when it has succeeded, and shows the error when it has not.
 */
export function Ask({ title, lead, target, fields = [], confirm, danger, run, onClose }: {
  title: string
  lead?: ReactNode
  target?: ReactNode
  fields?: readonly Field[]
  confirm: string
  danger?: boolean
  run: (values: Record<string, string>) => Promise<unknown>
  onClose: () => void
}) {
  const [error, setError] = useState('')
  const [busy, setBusy] = useState(false)
  useNow()
  async function submit(form: HTMLFormElement): Promise<void> {
    setBusy(true)
    setError('')
    try {
      await run(Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()])))
      onClose()
    } catch (fault) {
      setError(fault instanceof Error ? fault.message : String(fault))
      setBusy(false)
    }
  }
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
          <div className="field" key={field.name}>
            <label htmlFor={`ask-${field.name}`}>
              {field.label}
              {!field.required && !field.options && <span className="muted"> (optional)</span>}
            </label>
            {field.options ? (
              <select className="input" id={`ask-${field.name}`} name={field.name} defaultValue={field.value} onChange={(event) => field.onChange?.(event.target.value)}>
                {field.options.map((option) => (
                  <option key={option.value} value={option.value}>
                    {option.label}
                  </option>
                ))}
              </select>
            ) : field.multiline ? (
              <textarea className="input" id={`ask-${field.name}`} name={field.name} rows={3} required={field.required} defaultValue={field.value} autoFocus={index === 0} />
            ) : (
              <input className="input" id={`ask-${field.name}`} name={field.name} required={field.required} defaultValue={field.value} autoFocus={index === 0} autoComplete="off" />
            )}
            {field.hint && <span className="hint">{field.hint}</span>}
          </div>
        ))}
        {error && (
          <div className="problem" role="alert">
            {error}
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
