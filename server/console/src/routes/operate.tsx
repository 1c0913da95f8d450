import { useTitle } from '../shell/title'
import './operate.css'
import { Link, useParams } from '@tanstack/react-router'
import { Empty } from '../ui/basics'
import { useCurrentInView } from '../ui/filters'
import { Actions } from './operate/actions'
import { Audit } from './operate/audit'
import { Breakers } from './operate/breakers'
import { Recoveries } from './operate/recoveries'
import { Settings } from './operate/settings'
import { Silences } from './operate/silences'
import { Telemetry } from './operate/telemetry'
import { Tokens } from './operate/tokens'

const SECTIONS = [
  { id: 'actions', label: 'Actions', Section: Actions },
  { id: 'breakers', label: 'Circuit breakers', Section: Breakers },
  { id: 'recoveries', label: 'Recoveries', Section: Recoveries },
  { id: 'silences', label: 'Silences', Section: Silences },
  { id: 'telemetry', label: 'Telemetry', Section: Telemetry },
  { id: 'audit', label: 'Audit trail', Section: Audit },
  { id: 'settings', label: 'Settings', Section: Settings },
  { id: 'tokens', label: 'Tokens', Section: Tokens },
] as const

/** Actions and configuration of the service. */
export function OperatePage() {
  const { section } = useParams({ from: '/operate/$section' })
  const nav = useCurrentInView(section)
  const shown = SECTIONS.find((candidate) => candidate.id === section)
  useTitle(shown?.label ?? 'Operate')
  return (
    <div className="operate">
      <nav aria-label="Sections" className="sections" ref={nav}>
        {SECTIONS.map(({ id, label }) => (
          <Link key={id} to="/operate/$section" params={{ section: id }} search={{}} aria-current={id === section ? 'page' : undefined}>
            {label}
          </Link>
        ))}
      </nav>
      <div className="section">
        {shown ? (
          <>
            <h1>{shown.label}</h1>
            <shown.Section />
          </>
        ) : (
          <Empty isPage title="Section not found">
            <p className="wrap">Nothing is called {section}. Choose one of the sections.</p>
          </Empty>
        )}
      </div>
    </div>
  )
}
