import { useInfiniteQuery, useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { data, GET } from '../../api/client'
import { callerQuery } from '../../api/queries'
import type { Recovery, RecoveryState } from '../../api/schema'
import { useNow } from '../../clock'
import { duration } from '../../format'
import { Ago, Button, Empty, Loading, Panel, Pill, ReadError, ShowOlder, toneOf } from '../../ui/basics'
import type { Tone } from '../../ui/basics'
import { Choice } from '../../ui/filters'
import { RecoverTask } from '../worker-dialogs'
import { useFilters } from './filters'

const STATES: readonly RecoveryState[] = ['waiting', 'starting', 'watching', 'succeeded', 'failed', 'dropped']
const TONES: Partial<Record<RecoveryState, Tone>> = { waiting: 'degraded', starting: 'queen', watching: 'queen' }

/** Recoveries of tasks whose worker crashed or was terminated. */
export function Recoveries() {
  const [{ state = '' }, change] = useFilters()
  const mayAct = useQuery(callerQuery).data?.may_act
  const [task, setTask] = useState<Recovery | 'new' | null>(null)
  const result = useInfiniteQuery({
    queryKey: ['acting', 'recoveries', state],
    queryFn: ({ pageParam }) => data(GET('/api/recoveries', { params: { query: { limit: 50, ...(state ? { state: state as RecoveryState } : {}), ...(pageParam ? { cursor: pageParam } : {}) } } })),
    initialPageParam: '',
    getNextPageParam: (last) => last.next ?? undefined,
    placeholderData: (before) => before,
  })
  const rows = result.data?.pages.flatMap((page) => page.recoveries)
  return (
    <Panel
      title="Attempts"
      aside={
        mayAct && (
          <Button small onPress={() => setTask('new')}>
            Recover a task…
          </Button>
        )
      }
    >
      <div className="fleet-tools" role="group" aria-label="Filters">
        <Choice label="State" value={state} options={STATES} onChange={(next) => change({ state: next })} />
      </div>
      {result.error && !rows ? (
        <ReadError error={result.error} retry={() => void result.refetch()} />
      ) : !rows ? (
        <Loading rows={5} />
      ) : rows.length === 0 ? (
        <Empty title={state ? 'No recovery is in this state' : 'No recoveries yet'}>
          {!state && <p>When a worker crashes or is terminated, its task continues from the last valid checkpoint. Each attempt is listed here.</p>}
        </Empty>
      ) : (
        <ul className="entries">
          {rows.map((row) => (
            <RecoveryItem key={row.recovery_id} row={row} onRecover={mayAct ? () => setTask(row) : undefined} />
          ))}
        </ul>
      )}
      <ShowOlder list={result} />
      {task && <RecoverTask taskId={task === 'new' ? '' : task.task_id} onClose={() => setTask(null)} />}
    </Panel>
  )
}

function RecoveryItem({ row, onRecover }: { row: Recovery; onRecover: (() => void) | undefined }) {
  const now = useNow()
  const restarted = row.new_agent_id || row.agent_id
  return (
    <li>
      <div className="grow">
        <p className="row wraps">
          <Pill tone={TONES[row.state] ?? toneOf(row.state)}>{row.state}</Pill>
          <Link className="link wrap" to="/agents/$agentId" params={{ agentId: row.agent_id }} search={{ session: row.session_id }}>
            {row.agent_id}
          </Link>
          <span className="muted wrap">
            task <span className="mono">{row.task_id}</span>
            {row.attempt > 0 && `, attempt ${row.attempt}`}
            {row.from_start && ', from the start'}
          </span>
        </p>
        <p className="wrap">{row.reason}</p>
        {row.outcome && <p className="wrap muted">{row.outcome}</p>}
        <p className="muted row wraps">
          <span>
            {row.state === 'waiting' && row.not_before > now ? `starts in ${duration(row.not_before - now)}` : row.state === 'watching' && row.watch_until && row.watch_until > now ? `watched for another ${duration(row.watch_until - now)}` : ''}
          </span>
          <span>by {row.by}</span>
          {row.skipped.length > 0 && <span>{row.skipped.length} broken checkpoints skipped</span>}
          {row.new_session_id && (
            <Link className="link" to="/agents/$agentId" params={{ agentId: restarted }} search={{ session: row.new_session_id }}>
              New session
            </Link>
          )}
        </p>
        {row.exhausted && (
          <p className="tone-failing">
            <strong>No further attempts: a person must act.</strong>
          </p>
        )}
      </div>
      <div className="row wraps">
        <span className="when muted">
          <Ago at={row.created_at} />
        </span>
        {onRecover && (row.state === 'failed' || row.state === 'dropped') && (
          <Button small onPress={onRecover} aria-label={`Recover ${row.task_id}`}>
            Recover…
          </Button>
        )}
      </div>
    </li>
  )
}
