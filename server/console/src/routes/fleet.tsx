import { useInfiniteQuery, useQueryClient } from '@tanstack/react-query'
import type { InfiniteData } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useEffect, useRef } from 'react'
import { data, GET } from '../api/client'
import type { AgentRow, AgentsPage } from '../api/schema'
import { BAR_SECONDS, fleetBars, fleetPerMinute, sessionBars } from '../api/spending'
import type { SeriesName } from '../api/spending'
import { useNow } from '../clock'
import { count, duration, money, words } from '../format'
import { Ago, Empty, Loading, Pill, ReadError, Shape, toneOf } from '../ui/basics'
import { Ignored, isTyping, SearchInput } from '../ui/filters'
import { PHONE, useMatches } from '../ui/media'
import { ACTIVITY, describeActivity, HEALTH, RUNNING, sessionState, splitFilters } from './fleet-filters'
import type { Filters } from './fleet-filters'

const PAGE_SIZE = 60
/** Maximum pages that are kept and refetched after changes. */
const MAX_PAGES = 4

/** A page of the list: its position, and how to read the page before it. */
interface Place {
  cursor: string
  index: number
  before?: Place
}
const FIRST: Place = { cursor: '', index: 0 }

/** Return the last earlier position at which a list of `total` rows may have rows. */
function placeBefore(place: Place, total: number): Place {
  let candidate = place.before ?? FIRST
  while (candidate.before && candidate.index * PAGE_SIZE >= total) candidate = candidate.before
  return candidate
}

export function Fleet() {
  const { valid: filters, invalid } = splitFilters(useSearch({ from: '/' }) as Filters)
  const navigate = useNavigate()
  const change = (next: Partial<Filters>): void => {
    const search = Object.fromEntries(Object.entries({ ...filters, ...next }).filter(([, value]) => value))
    void navigate({ to: '/', search, replace: isTyping(filters.search, next.search), resetScroll: false })
  }
  const queries = useQueryClient()
  const queryKey = ['agents', filters]
  const fleet = useInfiniteQuery({
    queryKey,
    queryFn: ({ pageParam }) => data(GET('/api/agents', { params: { query: { ...filters, health: filters.health ?? RUNNING, limit: PAGE_SIZE, ...(pageParam.cursor ? { cursor: pageParam.cursor } : {}) } } })),
    initialPageParam: FIRST,
    getNextPageParam: (last, _, place) => (last.next ? { cursor: last.next, index: place.index + 1, before: place } : undefined),
    getPreviousPageParam: (_, __, place) => place.before,
    maxPages: MAX_PAGES,
    placeholderData: (before) => before,
  })
  const first = fleet.data?.pages[0]
  const rows = fleet.data?.pages.flatMap((page) => page.agents) ?? []
  const place = (fleet.data?.pageParams[0] as Place | undefined) ?? FIRST
  const above = place.index * PAGE_SIZE
  // The list has become shorter or its rows have moved, so it ends before the kept pages.
  const isPastEnd = rows.length === 0 && above > 0
  useEffect(() => {
    if (!isPastEnd || fleet.isFetching) return
    queries.setQueryData(queryKey, (kept?: InfiniteData<AgentsPage, Place>) => kept && { pages: kept.pages.slice(0, 1), pageParams: [placeBefore(place, kept.pages[0]?.total ?? 0)] })
    void fleet.refetch()
  })
  const chosen = new Set(filters.health?.split(',').filter(Boolean))
  const ended = filters.health ? 0 : (first?.counts.health?.ended ?? 0)
  const isFiltered = Object.entries(filters).some(([name, value]) => name !== 'sort' && value)

  function toggle(name: string): void {
    const next = new Set(chosen)
    if (!next.delete(name)) next.add(name)
    change({ health: [...next].join(',') })
  }

  return (
    <section className="panel fleet" aria-labelledby="fleet">
      <header>
        <h2 id="fleet">Fleet{first && <span className="muted number"> {count(first.total)}</span>}</h2>
        <Rates />
      </header>
      <div className="fleet-tools" role="group" aria-label="Filters">
        <div className="tiles">
          {HEALTH.map((name) => (
            <button key={name} className="tile" aria-pressed={chosen.has(name)} onClick={() => toggle(name)}>
              <Shape tone={toneOf(name)} />
              {name} <span className="number">{first ? count(first.counts.health?.[name] ?? 0) : '–'}</span>
            </button>
          ))}
        </div>
        <SearchInput label="Name, owner or reason" value={filters.search ?? ''} onChange={(search) => change({ search })} />
        <Choice label="Activity" value={filters.activity} options={ACTIVITY.map((name) => [name, first?.counts.activity?.[name] ?? 0] as const).filter(([, total]) => total)} onChange={(activity) => change({ activity })} />
        <Choice label="Owner" value={filters.owner} options={Object.entries(first?.counts.owner ?? {})} onChange={(owner) => change({ owner })} />
        <Choice label="Repository" value={filters.repository} options={Object.entries(first?.counts.repository ?? {})} onChange={(repository) => change({ repository })} />
        <select className="input sort" aria-label="Sort" value={filters.sort ?? 'attention'} onChange={(event) => change({ sort: event.target.value as NonNullable<Filters['sort']> })}>
          {COLUMNS.map(({ label, sort }) => sort && (
            <option key={sort} value={sort}>
              Sort: {label.toLowerCase()}
            </option>
          ))}
        </select>
        {isFiltered && (
          <button className="button plain small" onClick={() => change({ search: '', health: '', activity: '', owner: '', repository: '' })}>
            Clear
          </button>
        )}
      </div>
      <Ignored values={invalid} onRemove={() => change({})} />
      {fleet.error && !first ? (
        <ReadError error={fleet.error} retry={() => void fleet.refetch()} />
      ) : !first ? (
        <Loading rows={6} />
      ) : rows.length === 0 && !isPastEnd ? (
        isFiltered ? (
          <Empty title={ended ? 'No running session matches these filters' : 'No session matches these filters'} />
        ) : ended ? (
          <Empty title="No session is running" />
        ) : (
          <Empty title="No agent has reported yet">
            <p>Send its telemetry here, or install the hooks of your coding agent.</p>
            <Link to="/connect" className="button primary">
              Connect an agent
            </Link>
          </Empty>
        )
      ) : (
        <Rows key={JSON.stringify({ ...filters, sort: '' })} rows={rows} above={above} total={first.total} sort={filters.sort ?? ''} onSort={(sort) => change({ sort: sort as NonNullable<Filters['sort']> })} more={() => fleet.hasNextPage && !fleet.isFetching && void fleet.fetchNextPage()} earlier={() => fleet.hasPreviousPage && !isPastEnd && !fleet.isFetching && void fleet.fetchPreviousPage()} />
      )}
      {ended > 0 && (
        <footer className="fleet-foot">
          <button className="button plain small" onClick={() => change({ health: 'ended' })}>
            Show {count(ended)} ended
          </button>
        </footer>
      )}
    </section>
  )
}

/** Maximum owners and repositories that the service counts. */
const MAX_NAMES = 50

function Choice({ label, value, options, onChange }: { label: string; value: string | undefined; options: readonly (readonly [string, number])[]; onChange: (value: string) => void }) {
  if (!options.length && !value) return null
  return (
    <select className="input" aria-label={label} value={value ?? ''} onChange={(event) => onChange(event.target.value)}>
      <option value="">{label}: any</option>
      {value && !options.some(([name]) => name === value) && <option value={value}>{value}</option>}
      {options.map(([name, total]) => (
        <option key={name} value={name}>
          {name} ({count(total)})
        </option>
      ))}
      {options.length >= MAX_NAMES && <option disabled>Others: search for the name</option>}
    </select>
  )
}

const COLUMNS: readonly { label: string; sort?: string; className?: string }[] = [
  { label: 'Agent', sort: 'agent' },
  { label: 'Health', sort: 'attention' },
  { label: 'Activity', sort: 'activity', className: 'hides' },
  { label: 'Reason' },
  { label: 'Verdicts', className: 'hides' },
  { label: 'Progress', sort: 'progress', className: 'number' },
  { label: 'Tokens', sort: '-tokens', className: 'number hides' },
  { label: 'Cost', sort: '-cost', className: 'number' },
]

/** @param above Number of rows before the first kept row. */
function Rows({ rows, above, total, sort, onSort, more, earlier }: { rows: readonly AgentRow[]; above: number; total: number; sort: string; onSort: (sort: string) => void; more: () => void; earlier: () => void }) {
  const scroll = useRef<HTMLDivElement>(null)
  const small = useMatches(PHONE)
  const height = small ? 76 : 48
  const length = rows.length ? above + rows.length : total
  const virtual = useVirtualizer({
    count: length,
    getScrollElement: () => scroll.current,
    estimateSize: () => height,
    overscan: 6,
    getItemKey: (index) => {
      const row = rows[index - above]
      return row ? `${row.agent_id}\n${row.session_id}` : index
    },
  })
  useEffect(() => {
    virtual.measure()
  }, [height, virtual])
  const items = virtual.getVirtualItems()
  const first = items[0]?.index ?? 0
  const last = items.at(-1)?.index ?? 0
  useEffect(() => {
    if (first < above + 10) earlier()
    else if (last >= above + rows.length - 10) more()
  })
  return (
    <div role="table" aria-label="Sessions" aria-rowcount={total}>
      <div role="rowgroup">
        <div role="row" className="fleet-head">
          {COLUMNS.map(({ label, sort: by, className = '' }) => {
            const active = by && (sort || 'attention').replace(/^-/, '') === by.replace(/^-/, '')
            const isDescending = sort.startsWith('-')
            return (
              <span role="columnheader" key={label} className={className} {...(active ? { 'aria-sort': isDescending ? ('descending' as const) : ('ascending' as const) } : {})}>
                {by ? (
                  <button onClick={() => onSort(active && sort ? (isDescending ? sort.slice(1) : `-${sort}`) : by)}>
                    {label}
                    {active ? (isDescending ? ' ↓' : ' ↑') : ''}
                  </button>
                ) : (
                  label
                )}
              </span>
            )
          })}
        </div>
      </div>
      <div ref={scroll} className="fleet-scroll" style={{ height: `min(62vh, ${length * height + 2}px)` }} role="rowgroup" tabIndex={0} aria-label="Sessions of the fleet">
        <div style={{ height: virtual.getTotalSize(), position: 'relative' }} role="presentation">
          {items.map((item) => {
            const row = rows[item.index - above]
            return row && <Row key={item.key} row={row} index={item.index} top={item.start} />
          })}
        </div>
      </div>
    </div>
  )
}

function Row({ row, index, top }: { row: AgentRow; index: number; top: number }) {
  const navigate = useNavigate()
  const now = useNow()
  const state = sessionState(row)
  const open = { to: '/agents/$agentId', params: { agentId: row.agent_id }, search: { session: row.session_id } } as const
  return (
    <div role="row" aria-rowindex={index + 2} className="fleet-row" style={{ transform: `translateY(${top}px)` }} onClick={(event) => !(event.target as Element).closest('a') && !getSelection()?.toString() && void navigate(open)}>
      <span role="cell" className="name">
        <Link {...open} className="clip" style={{ display: 'block' }}>
          {row.agent_id}
        </Link>
        <small className="clip">{[row.repository, row.owner, row.session_id].filter(Boolean).join(' · ')}</small>
      </span>
      <span role="cell" className="state">
        <Pill tone={toneOf(state)}>{state}</Pill>
      </span>
      <span role="cell" className="clip hides hides-small" title={describeActivity(row, now)}>
        {words(describeActivity(row, now)) || '—'}
      </span>
      <span role="cell" className="clip why" title={row.reason || row.question}>
        {row.question || row.reason || <span className="muted">{row.ended ? '—' : 'no finding'}</span>}
      </span>
      <span role="cell" className="hides hides-small">
        <span className="bars" role="img" aria-label={row.verdicts.length ? `Last verdicts: ${row.verdicts.slice(-12).map(words).join(', ')}` : 'No verdicts'}>
          {row.verdicts.slice(-12).map((verdict, at) => (
            <i key={at} className={verdict.toLowerCase()} />
          ))}
        </span>
      </span>
      <span role="cell" className="number">
        <SessionSparkline row={row} series="progress" />
        <Ago at={row.last_progress} />
      </span>
      <span role="cell" className="number hides hides-small">
        <SessionSparkline row={row} series="tokens" />
        {count(row.tokens)}
      </span>
      <span role="cell" className="number">
        <SessionSparkline row={row} series="cost" />
        {money(row.cost_usd)}
      </span>
    </div>
  )
}

const total = (bars: readonly number[]): number => bars.reduce((sum, amount) => sum + amount, 0)

/** Amounts over time as bars, scaled to the highest amount. */
function Sparkline({ bars, text }: { bars: readonly number[]; text: string }) {
  const most = Math.max(...bars)
  return (
    <span className="sparkline" role="img" aria-label={text} title={text}>
      {bars.map((amount, at) => (
        <i key={at} style={{ height: `${Math.round((amount / most) * 100)}%` }} />
      ))}
    </span>
  )
}

/** Progress or spending of a session in the last two minutes. */
function SessionSparkline({ row, series }: { row: AgentRow; series: SeriesName }) {
  const bars = sessionBars(series, row.agent_id, row.session_id, useNow())
  const { unit, format } = RATES.find((rate) => rate.series === series)!
  if (row.ended || !total(bars)) return null
  return <Sparkline bars={bars} text={`${format(total(bars))} ${unit} in the last ${duration(bars.length * BAR_SECONDS)}`} />
}

/** Round, because a rate over part of a minute has fractions. */
const formatWhole = (value: number): string => count(Math.round(value))

const RATES: readonly { series: SeriesName; label: string; unit: string; format: (value: number) => string }[] = [
  { series: 'progress', label: 'Progress', unit: 'accepted steps and checkpoints', format: formatWhole },
  { series: 'tokens', label: 'Tokens', unit: 'tokens', format: formatWhole },
  { series: 'cost', label: 'Cost', unit: 'of model calls', format: money },
]

/** Progress and spending of the fleet. */
function Rates() {
  const now = useNow()
  return (
    <dl className="rates">
      {RATES.map(({ series, label, unit, format }) => {
        const bars = fleetBars(series, now)
        return (
          <div key={series}>
            <dt>{label}</dt>
            <dd>
              {total(bars) > 0 && <Sparkline bars={bars} text={`${format(total(bars))} ${unit} in the last ${duration(bars.length * BAR_SECONDS)}`} />}
              <span className="number">{format(fleetPerMinute(series, now))}/min</span>
            </dd>
          </div>
        )
      })}
    </dl>
  )
}
