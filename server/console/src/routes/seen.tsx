import type { Target } from '../api/acts'

/** A worker as it was shown: the service refuses an action on another incarnation. */
export const Seen = ({ session_id, incarnation_id }: Pick<Target, 'session_id' | 'incarnation_id'>) => (
  <p className="mono muted wrap" style={{ fontSize: 12 }}>
    Session {session_id}
    <br />
    Incarnation {incarnation_id || 'not reported'}
  </p>
)
