import type { ComponentType } from 'react'
import { useEffect, useEffectEvent, useState } from 'react'
import { showToast } from './toasts'

/**
 * A dialog whose code loads when it is first opened.
 *
 * If the code cannot be loaded, a toast reports it and the page stays unchanged.
 */
export function lazyDialog<Props extends { onClose: () => void }>(load: () => Promise<ComponentType<Props>>): ComponentType<Props> {
  let loaded: ComponentType<Props> | undefined
  return function LazyDialog(props: Props) {
    const [Dialog, setDialog] = useState(() => loaded)
    const fail = useEffectEvent(() => {
      showToast('Cannot load the dialog. Try again; reload the page if Queenright was upgraded.', true, { label: 'Reload', run: () => location.reload() })
      props.onClose()
    })
    useEffect(() => {
      if (loaded) return
      let isShown = true
      load().then(
        (component) => {
          loaded = component
          if (isShown) setDialog(() => component)
        },
        () => {
          if (isShown) fail()
        },
      )
      return () => {
        isShown = false
      }
    }, [])
    if (Dialog) return <Dialog {...props} />
    return (
      <div className="overlay-loading" role="status">
        Loading…
      </div>
    )
  }
}
