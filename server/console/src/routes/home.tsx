import './home.css'
import { useQuery } from '@tanstack/react-query'
import { useConnection } from '../api/watch'
import { attentionQuery } from '../api/queries'
import { Loading, Panel, ReadError } from '../ui/basics'
import { AttentionList } from './attention'
import { Doing, ProviderStatus } from './doing'
import { Fleet } from './fleet'

/** Who needs a person now, what is being done about the rest, and the fleet. */
export function Home() {
  const attention = useQuery(attentionQuery)
  const { state } = useConnection()
  const total = attention.data?.total ?? 0
  return (
    <div className="home">
      <h1 className="visually-hidden">Fleet</h1>
      <Panel title={total ? `Needs you (${total})` : 'Needs you'}>
        {attention.data ? (
          <AttentionList items={attention.data.items} total={total} />
        ) : attention.error && state !== 'connecting' ? (
          <ReadError error={attention.error} retry={() => void attention.refetch()} />
        ) : (
          <Loading />
        )}
      </Panel>
      <div className="stack">
        <Doing />
        <ProviderStatus />
      </div>
      <div className="wide">
        <Fleet />
      </div>
    </div>
  )
}
