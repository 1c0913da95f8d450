import type { Target } from '../api/worker-actions'

/** The session and incarnation of a target. The service refuses an action on another incarnation. */
export const TargetDetails = ({ session_id, incarnation_id }: Pick<Target, 'session_id' | 'incarnation_id'>) => (
  <p className="mono muted wrap" style={{ fontSize: 12 }}>
    Session {session_id}
    <br />
    Incarnation {incarnation_id || 'not reported'}
  </p>
)
