import type { ReactNode } from 'react'
import type { Step } from '../../api/schema'
import { words } from '../../format'
import { Shape, toneOf } from '../../ui/basics'

/** Groups of step kinds in the filter. */
export const GROUPS: readonly { id: string; label: string; kinds: readonly Step['kind'][] }[] = [
  { id: 'turns', label: 'Turns', kinds: ['turn'] },
  { id: 'tools', label: 'Tool calls', kinds: ['tool'] },
  { id: 'waits', label: 'Waits', kinds: ['wait'] },
  { id: 'findings', label: 'Findings', kinds: ['finding', 'state'] },
  { id: 'tickets', label: 'Tickets', kinds: ['ticket'] },
  { id: 'interventions', label: 'Interventions', kinds: ['intervention'] },
  { id: 'notifications', label: 'Notifications', kinds: ['notification'] },
  { id: 'other', label: 'Other', kinds: ['checkpoint', 'started', 'ended', 'other'] },
]

export const groupOf = (kind: Step['kind']): string => GROUPS.find((group) => group.kinds.includes(kind))?.id ?? 'other'

const NAMES: Record<Step['kind'], string> = {
  turn: 'Turn', tool: 'Tool call', wait: 'Wait', checkpoint: 'Checkpoint', finding: 'Finding', state: 'Health', ticket: 'Ticket',
  intervention: 'Intervention', notification: 'Notification', started: 'Started', ended: 'Ended', other: 'Event',
}

export const kindName = (kind: Step['kind']): string => NAMES[kind]

const ICONS: Record<string, ReactNode> = {
  turn: <path d="M2 3.5h10v6.5H7L4.5 12v-2H2z" />,
  step: <path d="M3 7.5 6 10.5 11 4" />,
  tool: <path d="M8.8 2a3 3 0 0 0-2.6 4.2L2.3 10a1.2 1.2 0 0 0 1.7 1.7l3.8-3.9A3 3 0 0 0 11.8 4L10 5.6 8.4 4 10 2.2A3 3 0 0 0 8.8 2z" />,
  wait: <path d="M4 2h6M4 12h6M4.5 2c0 3 5 4 5 5s-5 2-5 5M9.5 2c0 3-5 4-5 5s5 2 5 5" />,
  checkpoint: <path d="M4 12.5V2h7L9 4.5 11 7H4" />,
  ticket: <path d="M2 4h10v2a1 1 0 0 0 0 2v2H2V8a1 1 0 0 0 0-2z" />,
  intervention: <path d="M2 7h8M7 3.5 10.5 7 7 10.5M12.5 3v8" />,
  notification: <path d="M3 10c1-1 1-2 1-4a3 3 0 0 1 6 0c0 2 0 3 1 4zM6 12h2" />,
  started: <path d="M4 2.5v9l7-4.5z" />,
  ended: <rect x="3" y="3" width="8" height="8" rx="1" />,
  other: <circle cx="7" cy="7" r="1.5" />,
}

/** The type of a finding of a shadow detector, which has no event. */
export const SHADOW = 'finding_shadow'

/** Whether a step is one of the worker's own loop, not a model call. */
export const isOwnStep = ({ type }: Step): boolean => type === 'step_started' || type === 'step_completed'

/** Whether a finding is cleared, and no longer has the tone of its severity. */
export const isCleared = ({ type }: Step): boolean => type === 'finding_cleared'

/** The state of a worker. An ended session is not shown as healthy. */
const stateName = ({ name, detail: outcome }: Step): string => (name === 'healthy' && outcome ? 'ended' : name || 'state')

export function KindIcon({ step }: { step: Step }) {
  if (step.kind === 'finding') return <Shape tone={isCleared(step) ? 'quiet' : toneOf(step.severity)} />
  if (step.kind === 'state') return <Shape tone={toneOf(stateName(step))} />
  return (
    <svg className={`kind-icon ${step.kind} ${step.phase}`} width="14" height="14" viewBox="0 0 14 14" fill="none" stroke="currentColor" strokeWidth="1.4" strokeLinejoin="round" strokeLinecap="round" aria-hidden="true">
      {ICONS[isOwnStep(step) ? 'step' : step.kind] ?? ICONS.other}
    </svg>
  )
}

const TYPES: Record<string, string> = {
  worker_escalation_ticket: 'Ticket', queen_intervention_requested: 'Queen asks for an intervention', ticket_triaged: 'Queen decides',
  ticket_acknowledged: 'Ticket acknowledged', ticket_unacknowledged: 'Acknowledgement withdrawn', ticket_reescalated: 'Ticket raised again',
  ticket_resolved: 'Ticket closed', notification_delivered: 'Notification sent', notification_failed: 'Notification not sent', nudge_sent: 'Nudge',
  escalation_triggered: 'Escalated', escalation_decided: 'Escalation decided', termination_requested: 'Termination requested',
  termination_decided: 'Termination decided', agent_terminated: 'Terminated', recovery_initiated: 'Recovery started', recovery_completed: 'Recovered',
  recovery_failed: 'Recovery failed', intervention_recorded: 'Intervention', checkpoint_saved: 'Checkpoint',
}

/** The display name of a step. */
export function stepName(step: Step): string {
  switch (step.kind) {
    case 'finding':
      return words(step.name) + ({ finding_cleared: ' cleared', [SHADOW]: ' (shadow)' }[step.type] ?? '')
    case 'state':
      return stateName(step)
    case 'wait':
      return `waits for ${words(step.name) || 'input'}`
    case 'started':
      return step.type === 'execution_resumed' ? 'Session resumed' : 'Session started'
    case 'ended':
      return `Session ${words(step.name) || 'ended'}`
    case 'turn':
    case 'tool':
      return step.name || NAMES[step.kind].toLowerCase()
    default:
      return TYPES[step.type] ?? words(step.name || step.type)
  }
}

const MARKS: readonly ReactNode[] = [
  <path key="0" d="M6 1 11 10H1z" />,
  <rect key="1" x="1.5" y="1.5" width="9" height="9" />,
  <circle key="2" cx="6" cy="6" r="5" />,
  <path key="3" d="M6 .5 11.5 6 6 11.5.5 6z" />,
  <path key="4" d="M4.2 1h3.6v3.2H11v3.6H7.8V11H4.2V7.8H1V4.2h3.2z" />,
  <path key="5" d="M6 .8l1.6 3.4 3.8.4-2.8 2.5.8 3.8L6 9 2.6 10.9l.8-3.8L.6 4.6l3.8-.4z" />,
]

/** The glyph of a repeated call. */
export function Mark({ glyph }: { glyph: number }) {
  return (
    <svg className={`mark-${glyph % MARKS.length}`} width="11" height="11" viewBox="0 0 12 12" fill="currentColor" aria-hidden="true">
      {MARKS[glyph % MARKS.length]}
    </svg>
  )
}
