import './home.css'
import { useQuery } from '@tanstack/react-query'
import { useConnection } from '../api/watch'
import { attentionQuery } from '../api/queries'
import { Loading, Panel, ReadError } from '../ui/basics'
import { NeedsYou } from './attention'
import { CurrentActions, ProviderStatus } from './current-actions'
import { Fleet } from './fleet'

/** Items that need a person, current actions, and the fleet. */
export function Home() {
  const attention = useQuery(attentionQuery)
  const { state } = useConnection()
  return (
    <div className="home">
      <h1 className="visually-hidden">Fleet</h1>
      <div>
        {attention.data ? (
          <NeedsYou list={attention.data} isOnly />
        ) : (
          <Panel title="Needs you">{attention.error && state !== 'connecting' ? <ReadError error={attention.error} retry={() => void attention.refetch()} /> : <Loading />}</Panel>
        )}
      </div>
      <div className="stack">
        <CurrentActions />
        <ProviderStatus />
      </div>
      <div className="wide">
        <Fleet />
      </div>
    </div>
  )
}
