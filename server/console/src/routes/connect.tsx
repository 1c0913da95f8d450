import './operate.css'
import { useTitle } from '../shell/title'
import './connect.css'
import { useQuery } from '@tanstack/react-query'
import { Link, useSearch } from '@tanstack/react-router'
import { useState } from 'react'
import { callerQuery } from '../api/queries'
import type { TelemetrySource } from '../api/schema'
import { counted } from '../format'
import { Ago, Button, Copyable, Panel, Pill, Shape, withCode } from '../ui/basics'
import { useCurrentInView } from '../ui/filters'
import { CODING_AGENTS, GUIDES, telemetryAddress } from './connect-guides'
import type { Guide } from './connect-guides'
import { settingsQuery } from './operate/settings'
import { sentence, telemetryQuery } from './operate/telemetry'

const GROUPS = ['Coding agents', 'Frameworks', 'Your own code'] as const

/** How to connect an agent, with commands to copy, and whether its data has arrived. */
export function ConnectPage() {
  const { client = 'claude-code' } = useSearch({ from: '/connect' })
  const guide = GUIDES.find((candidate) => candidate.id === client) ?? GUIDES[0]!
  useTitle(`Connect ${guide.label}`)
  const nav = useCurrentInView(guide.id)
  const caller = useQuery(callerQuery).data
  const settings = useQuery({ ...settingsQuery, enabled: caller?.may_manage === true })
  const [address, setAddress] = useState<string | null>(null)
  const otlp = (address ?? telemetryAddress(location, settings.data?.settings.otlp as { port?: unknown } | undefined)).trim().replace(/\/+$/, '')
  const place = { otlp, service: location.origin, needsToken: Boolean(caller?.name) }
  return (
    <>
      <div className="page-head">
        <h1>Connect an agent</h1>
      </div>
      <div className="connect">
        <nav className="guides" aria-label="Kinds of agents" ref={nav}>
          {GROUPS.map((group) => (
            <section key={group}>
              <h2>{group}</h2>
              <ul>
                {GUIDES.filter((candidate) => candidate.group === group).map((candidate) => (
                  <li key={candidate.id}>
                    <Link to="/connect" search={{ client: candidate.id }} replace resetScroll={false} aria-current={candidate === guide ? 'page' : undefined}>
                      {candidate.label}
                    </Link>
                  </li>
                ))}
              </ul>
            </section>
          ))}
        </nav>
        <Panel title={guide.label}>
          <div className="address">
            <div className="field">
              <label htmlFor="otlp">Telemetry endpoint</label>
              <input id="otlp" className="input mono" value={address ?? otlp} onChange={(event) => setAddress(event.target.value)} autoComplete="off" spellCheck={false} aria-describedby="otlp-hint" />
              <span className="hint" id="otlp-hint">
                The URL at which the agent&apos;s machine reaches this service. The commands below use it.
              </span>
            </div>
          </div>
          <ol className="guide-steps">
            {guide.steps.map((step) => (
              <li key={step.text}>
                <p>{withCode(step.text)}</p>
                {step.code && <Copyable text={step.code(place)} />}
              </li>
            ))}
          </ol>
          {guide.note && <p className="connect-note">{withCode(guide.note)}</p>}
          {place.needsToken && (
            <p className="connect-note">
              This service requires tokens: <code>queenright token create my-agent --role reporter</code> creates a token for an agent.
            </p>
          )}
        </Panel>
        <div className="third">
          <Arrival key={guide.id} guide={guide} />
        </div>
      </div>
    </>
  )
}

/** Whether telemetry has arrived: of a coding agent at any time, of others since the page was opened. */
function Arrival({ guide }: { guide: Guide }) {
  const found = useQuery(telemetryQuery)
  const [opened] = useState(() => Date.now() / 1000)
  const isCoding = guide.group === 'Coding agents'
  const senders = (found.data?.sources ?? []).filter((source) => (guide.dialects ? guide.dialects.includes(source.dialect) : !CODING_AGENTS.some((name) => name === source.dialect)))
  const arrived = senders.filter((source) => isCoding || source.first_seen >= opened - 1)
  const refused = (found.data?.refused ?? []).filter((source) => source.last_seen >= opened - 60)
  const earlier = senders.length - arrived.length
  return (
    <Panel
      title="First data"
      aside={
        <Button small onPress={() => void found.refetch()} isDisabled={found.isFetching}>
          Check now
        </Button>
      }
    >
      <div className="arrival" role="status">
        {arrived.length ? (
          <>
            <p className="state">
              <Shape tone="healthy" />
              First data has arrived
            </p>
            <ul>
              {arrived.slice(0, 5).map((source) => (
                <Sender key={`${source.service}/${source.dialect}`} sender={source} />
              ))}
            </ul>
          </>
        ) : (
          <>
            <p className="state">
              <span className="beacon" aria-hidden="true" />
              Waiting for {isCoding ? guide.label : 'a new sender'}
            </p>
            <p className="muted">Updates automatically when the first data arrives.</p>
          </>
        )}
        {found.error && <p className="tone-failing">{found.error.message}</p>}
        {refused.map((source) => (
          <p key={`${source.path}/${source.status}`} className="remedy wrap">
            <strong>
              A request to {source.path} was refused ({source.status}) <Ago at={source.last_seen} />.
            </strong>{' '}
            {source.reason}
          </p>
        ))}
        <p className="muted">
          {earlier > 0 && `${counted(earlier, 'sender')} known before. `}
          <Link className="link" to="/operate/$section" params={{ section: 'telemetry' }} search={{}}>
            All telemetry
          </Link>
        </p>
      </div>
    </Panel>
  )
}

function Sender({ sender }: { sender: TelemetrySource }) {
  return (
    <li className="stack" style={{ gap: 4 }}>
      <p className="row wraps">
        <strong className="wrap">{sender.service}</strong>
        <Pill tone={sender.used ? 'healthy' : 'failing'}>{sender.used ? counted(sender.used, 'record') : 'not understood'}</Pill>
      </p>
      <p className="muted">
        First <Ago at={sender.first_seen} />, last <Ago at={sender.last_seen} />
      </p>
      {sender.agents.map((agent) => (
        <Link key={agent} className="link wrap" to="/agents/$agentId" params={{ agentId: agent }} search={{}}>
          {agent}
        </Link>
      ))}
      {sender.missing.map((part) => (
        <p key={part.missing} className="remedy wrap">
          <strong>{sentence(part.missing)}</strong> {withCode(sentence(part.remedy))}
        </p>
      ))}
    </li>
  )
}
