import type { QueryClient } from '@tanstack/react-query'
import { createRootRouteWithContext, createRoute, createRouter, lazyRouteComponent, redirect } from '@tanstack/react-router'
import { Home } from './routes/home'
import { NotFound, RouteError } from './shell/errors'
import { Shell } from './shell/shell'
import { loadCode } from './ui/load'

interface Context {
  queries: QueryClient
}

const root = createRootRouteWithContext<Context>()({ component: Shell, notFoundComponent: NotFound })

/** Text parameters of a URL. Empty ones are omitted. */
function parseTexts<Name extends string>(...names: Name[]) {
  return (search: Record<string, unknown>): Partial<Record<Name, string>> => {
    const parameters: Partial<Record<Name, string>> = {}
    for (const name of names) {
      const value = search[name]
      if (value !== undefined && value !== null && value !== '') parameters[name] = String(value)
    }
    return parameters
  }
}

export const homeRoute = createRoute({
  getParentRoute: () => root,
  path: '/',
  validateSearch: parseTexts('search', 'health', 'activity', 'owner', 'repository', 'sort'),
  component: Home,
})

export const sessionRoute = createRoute({
  getParentRoute: () => root,
  path: '/agents/$agentId',
  validateSearch: parseTexts('session', 'at', 'view', 'kinds', 'repeat', 'set'),
  component: lazyRouteComponent(() => loadCode(() => import('./routes/session')), 'SessionPage'),
})

export const ticketsRoute = createRoute({
  getParentRoute: () => root,
  path: '/tickets',
  validateSearch: parseTexts('status', 'severity', 'agent'),
  component: lazyRouteComponent(() => loadCode(() => import('./routes/tickets')), 'TicketsPage'),
})

export const ticketRoute = createRoute({
  getParentRoute: () => root,
  path: '/tickets/$ticketId',
  component: lazyRouteComponent(() => loadCode(() => import('./routes/ticket')), 'TicketPage'),
})

export const incidentsRoute = createRoute({
  getParentRoute: () => root,
  path: '/incidents',
  component: lazyRouteComponent(() => loadCode(() => import('./routes/incidents')), 'IncidentsPage'),
})

export const incidentRoute = createRoute({
  getParentRoute: () => root,
  path: '/incidents/$incidentId',
  component: lazyRouteComponent(() => loadCode(() => import('./routes/incident')), 'IncidentPage'),
})

export const talkRoute = createRoute({
  getParentRoute: () => root,
  path: '/talk',
  validateSearch: parseTexts('agent', 'session', 'ticket', 'graph'),
  component: lazyRouteComponent(() => loadCode(() => import('./routes/talk')), 'TalkPage'),
})

export const operateRoute = createRoute({
  getParentRoute: () => root,
  path: '/operate/$section',
  validateSearch: parseTexts('search', 'state', 'agent', 'type'),
  component: lazyRouteComponent(() => loadCode(() => import('./routes/operate')), 'OperatePage'),
})

/** Short URLs of sections, which the service also redirects, and the former URL of the actions. */
const shortRoutes = ['operate', 'operate/acting', 'actions', 'breakers', 'recoveries', 'silences', 'telemetry', 'audit', 'settings', 'tokens'].map((name) =>
  createRoute({
    getParentRoute: () => root,
    path: `/${name}`,
    beforeLoad: () => {
      throw redirect({ to: '/operate/$section', params: { section: name.startsWith('operate') ? 'actions' : name }, search: {}, replace: true })
    },
  }),
)

export const connectRoute = createRoute({
  getParentRoute: () => root,
  path: '/connect',
  validateSearch: parseTexts('client'),
  component: lazyRouteComponent(() => loadCode(() => import('./routes/connect')), 'ConnectPage'),
})

const tree = root.addChildren([
  homeRoute,
  sessionRoute,
  ticketsRoute,
  ticketRoute,
  incidentsRoute,
  incidentRoute,
  talkRoute,
  operateRoute,
  connectRoute,
  ...shortRoutes,
])

export const makeRouter = (queries: QueryClient) =>
  createRouter({
    routeTree: tree,
    basepath: '/console',
    context: { queries },
    defaultPreload: 'intent',
    defaultErrorComponent: RouteError,
    scrollRestoration: true,
    scrollToTopSelectors: ['#content'],
  })

declare module '@tanstack/react-router' {
  interface Register {
    router: ReturnType<typeof makeRouter>
  }
}
