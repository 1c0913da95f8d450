import { useQuery, queryOptions } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { data, GET } from '../../api/client'
import type { TelemetrySource } from '../../api/schema'
import { count, counted, words } from '../../format'
import { Ago, Button, Empty, Loading, Panel, Pill, ReadError, withCode } from '../../ui/basics'

// Events of agents show that telemetry has arrived. Unused telemetry creates no events, so there is a button.
export const telemetryQuery = queryOptions({
  queryKey: ['agents', 'telemetry'],
  queryFn: () => data(GET('/api/telemetry')),
})

const PARTS = ['name', 'session', 'model_calls', 'tokens', 'tool_calls', 'content', 'open_work'] as const

/** Senders of telemetry: used records, missing data, and remedies. */
export function Telemetry() {
  const result = useQuery(telemetryQuery)
  const readAgain = (
    <Button small onPress={() => void result.refetch()} isDisabled={result.isFetching}>
      Read again
    </Button>
  )
  if (result.error && !result.data) return <ReadError error={result.error} retry={() => void result.refetch()} />
  if (!result.data) return <Loading rows={6} />
  const { sources, unused, refused } = result.data
  return (
    <div className="stack">
      <Panel title={sources.length ? `Senders (${sources.length})` : 'Senders'} aside={readAgain}>
        {sources.length === 0 ? (
          <Empty title="Nothing has arrived since the service started">
            <Link to="/connect" className="button primary">
              Connect an agent
            </Link>
          </Empty>
        ) : (
          <ul className="entries">
            {sources.map((source) => (
              <Source key={`${source.service}/${source.dialect}`} source={source} />
            ))}
          </ul>
        )}
      </Panel>
      {refused.length > 0 && (
        <Panel title="Refused requests">
          <ul className="entries">
            {refused.map((row) => (
              <li key={`${row.path}/${row.status}`}>
                <div className="grow">
                  <p className="row wraps">
                    <Pill tone="failing">{row.status}</Pill>
                    <code className="wrap">{row.path}</code>
                    <span className="muted number">{counted(row.count, 'request')}</span>
                  </p>
                  <p className="wrap">{row.reason}</p>
                </div>
                <span className="when muted">
                  <Ago at={row.last_seen} />
                </span>
              </li>
            ))}
          </ul>
        </Panel>
      )}
      {unused.length > 0 && (
        <Panel title="Records that were not used">
          <ul className="entries">
            {unused.map((row) => (
              <li key={`${row.dialect}/${row.reason}`}>
                <div className="grow">
                  <p className="row wraps">
                    {row.rejected && <Pill tone="failing">rejected</Pill>}
                    <strong className="number">{count(row.count)}</strong>
                    <span className="muted wrap">
                      {row.dialect}, <code>{row.reason}</code>
                    </span>
                  </p>
                  <p className="wrap">{row.words}</p>
                </div>
              </li>
            ))}
          </ul>
        </Panel>
      )}
    </div>
  )
}

/** Capitalize a phrase and end it with a period. */
export const sentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}`

function Source({ source }: { source: TelemetrySource }) {
  const state = source.rejected ? 'rejected' : !source.used ? 'not understood' : source.missing.length ? 'incomplete' : 'complete'
  return (
    <li>
      <div className="grow">
        <p className="row wraps">
          <Pill tone={state === 'complete' ? 'healthy' : state === 'incomplete' ? 'degraded' : 'failing'}>{state}</Pill>
          <strong className="wrap">{source.service}</strong>
          <span className="muted wrap">
            {source.dialect}
            {source.dialect === 'other' && source.libraries.length > 0 && `: ${source.libraries.join(', ')}`}
          </span>
        </p>
        <p className="muted number">
          {count(source.used)} of {counted(source.records, 'record')} used
          {source.rejected > 0 && `, ${count(source.rejected)} rejected`}
          {source.session && `; last session: ${counted(source.steps, 'step')}, ${counted(source.tool_calls, 'tool call')}, ${counted(source.tokens, 'token')}`}
        </p>
        <p className="row wraps" aria-label="What it reports">
          {PARTS.map((part) => (
            <span key={part} className={source.shows.includes(part) ? '' : 'muted'}>
              {source.shows.includes(part) ? '✓' : '—'} {words(part)}
              {!source.shows.includes(part) && <span className="visually-hidden"> missing</span>}
            </span>
          ))}
        </p>
        {source.agents.length > 0 && (
          <p className="row wraps">
            <span className="muted">Agents:</span>
            {source.agents.map((agent) => (
              <Link key={agent} className="link wrap" to="/agents/$agentId" params={{ agentId: agent }} search={{}}>
                {agent}
              </Link>
            ))}
          </p>
        )}
        {source.missing.map((part) => (
          <p key={part.missing} className="remedy wrap">
            <strong>{sentence(part.missing)}</strong> {withCode(sentence(part.remedy))}
          </p>
        ))}
      </div>
      <span className="when muted">
        <Ago at={source.last_seen} />
      </span>
    </li>
  )
}
