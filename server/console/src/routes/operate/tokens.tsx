import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { callerQuery } from '../../api/queries'
import { Copyable, Loading, Panel } from '../../ui/basics'

const ROLES = [
  ['reporter', 'for machines: sends telemetry and heartbeats, fetches instructions'],
  ['viewer', 'views everything except the settings'],
  ['operator', 'also acts on workers and tickets'],
  ['admin', 'also loads agents, and reads and reloads the settings'],
] as const

/** Access tokens. They are never shown over the network, so commands manage them. */
export function Tokens() {
  const caller = useQuery(callerQuery).data
  return (
    <div className="stack">
      <Panel title="You">
        <div className="body">
          {!caller ? (
            <Loading rows={1} />
          ) : caller.name ? (
            <p>
              Signed in as <strong>{caller.name}</strong>, {caller.role}.
            </p>
          ) : (
            <p>No token is needed on this machine: anyone who reaches this page has full access. Any other address requires a token for every request.</p>
          )}
        </div>
      </Panel>
      <Panel title="Manage tokens">
        <div className="body stack">
          <p className="muted">Tokens are managed on the machine of the service; changes take effect at once. A token is shown once, when it is created, and only its hash is stored. If the service was started with <code>--config</code> or <code>--storage</code>, pass the same options to these commands.</p>
          <Copyable text="queenright token list" />
          <Copyable text="queenright token create ada --role operator --expires 90d" />
          <Copyable text="queenright token revoke ada" />
          <dl className="facts">
            {ROLES.map(([role, what]) => (
              <div key={role} style={{ display: 'contents' }}>
                <dt>{role}</dt>
                <dd>{what}</dd>
              </div>
            ))}
          </dl>
          <p>
            <Link className="link" to="/operate/$section" params={{ section: 'audit' }} search={{ type: 'tokens_changed' }}>
              Changes of tokens in the audit trail
            </Link>
          </p>
        </div>
      </Panel>
    </div>
  )
}
