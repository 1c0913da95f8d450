import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { callerQuery } from '../api/queries'
import { Button } from '../ui/basics'
import { Sheet } from '../ui/dialog'
import { getUserName, setUserName } from './user-name'
import type { Theme } from './theme'
import { chooseTheme, useTheme } from './theme'

export default function Preferences({ onClose }: { onClose: () => void }) {
  const caller = useQuery(callerQuery).data
  const theme = useTheme()
  const [name, setName] = useState(getUserName() ?? '')
  return (
    <Sheet title="Preferences" onClose={onClose}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault()
          setUserName(name.trim())
          onClose()
        }}
      >
        {caller?.name ? (
          <p>
            Signed in as <strong>{caller.name}</strong>, role {caller.role}.
          </p>
        ) : (
          <div className="field">
            <label htmlFor="name">Your name</label>
            <input id="name" className="input" value={name} maxLength={100} onChange={(event) => setName(event.target.value)} />
            <span className="hint">Recorded with your actions. Stored in this browser.</span>
          </div>
        )}
        <div className="field">
          <label htmlFor="theme">Colours</label>
          <select id="theme" className="input" value={theme} onChange={(event) => chooseTheme(event.target.value as Theme)}>
            <option value="system">System</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </div>
        <div className="row" style={{ justifyContent: 'flex-end' }}>
          <Button type="submit" look="primary">
            Save
          </Button>
        </div>
      </form>
      {caller?.name && (
        <form method="post" action="/logout">
          <button className="button">Sign out</button>
        </form>
      )}
    </Sheet>
  )
}
