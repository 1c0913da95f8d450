/** The URLs in the commands of a guide. */
export interface Place {
  /** The telemetry endpoint, such as `http://127.0.0.1:4318`. */
  otlp: string
  /** The URL of this console and the API. */
  service: string
  needsToken: boolean
}

export interface Step {
  text: string
  code?: (place: Place) => string
}

export interface Guide {
  id: string
  label: string
  group: 'Coding agents' | 'Frameworks' | 'Your own code'
  /** Dialects of the resulting telemetry; undefined for any that is not a coding agent's. */
  dialects?: readonly string[]
  steps: readonly Step[]
  note?: string
}

const DEFAULT_OTLP = 'http://127.0.0.1:4318'
const DEFAULT_SERVICE = 'http://127.0.0.1:8420'

export const CODING_AGENTS = ['claude-code', 'codex', 'gemini-cli'] as const

/** The environment of a program that exports OpenTelemetry. */
export function environment({ otlp, needsToken }: Place, ...more: string[]): string {
  return [
    `export OTEL_EXPORTER_OTLP_ENDPOINT=${otlp}`,
    'export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf',
    'export OTEL_SERVICE_NAME=my_agent',
    ...(needsToken ? ['export OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20qrt_..."   # a reporter\'s token'] : []),
    ...more,
  ].join('\n')
}

function makeConnectCommand(name: 'claude-code' | 'codex' | 'gemini', { otlp, needsToken }: Place): string {
  return ['queenright connect', name, otlp === DEFAULT_OTLP ? '' : `--otlp-url ${otlp}`, needsToken ? '--token-file reporter.token' : ''].filter(Boolean).join(' ')
}

const makeCheckCommand = (name: string, { service }: Place): string => `queenright connect ${name} --check${service === DEFAULT_SERVICE ? '' : ` --url ${service}`}`

function codingAgent(id: string, label: string, name: 'claude-code' | 'codex' | 'gemini', restart: string, note: string): Guide {
  return {
    id,
    label,
    group: 'Coding agents',
    dialects: [id],
    steps: [
      { text: 'Connect it. The command shows the changes to the settings before it writes them; `queenright disconnect` restores the files.', code: (place) => makeConnectCommand(name, place) },
      { text: restart },
      { text: 'To see in the terminal what has arrived and what is missing:', code: (place) => makeCheckCommand(name, place) },
    ],
    note,
  }
}

const PROVIDER = `from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from queenright.instrumentation import watch_spans

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
watch_spans()  # optional: finds a call that hangs while it hangs`

const PACKAGE = '"queenright @ git+https://YOUR-GIT-HOST/queenright.git"'
const OWN_PACKAGE = 'It is not on a package index: give its git URL, or the path of its wheel.'

function framework(id: string, label: string, install: readonly string[], code: string, more: readonly string[] = [], note?: string): Guide {
  return {
    id,
    label,
    group: 'Frameworks',
    steps: [
      { text: `Install the exporter${install.length ? ', the instrumentation' : ''} and Queenright's package, which has \`watch_spans\`. ${OWN_PACKAGE}`, code: () => `pip install ${[PACKAGE, 'opentelemetry-sdk', 'opentelemetry-exporter-otlp-proto-http', ...install].join(' \\\n  ')}` },
      { text: 'Export over HTTP: many exporters default to gRPC, which Queenright does not accept.', code: (place) => environment(place, ...more) },
      { text: 'Add this before the agent is created.', code: () => `${PROVIDER}${code ? `\n\n${code}` : ''}` },
      { text: 'Run the agent.' },
    ],
    ...(note ? { note } : {}),
  }
}

const GENAI = ['export OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental', 'export OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY']

/** Guides for connecting each kind of agent, as in docs/coding-agents.md and docs/frameworks.md. */
export const GUIDES: readonly Guide[] = [
  codingAgent('claude-code', 'Claude Code', 'claude-code', 'Restart Claude Code and give it a task.', 'Nudges, terminations and answers to permission requests reach it through its hooks. To answer permission requests here, connect with `--permission-seconds 60`.'),
  codingAgent('codex', 'Codex', 'codex', 'Restart Codex, trust the new hooks with `/hooks`, and give it a task.', 'To answer permission requests here, connect with `--permission-seconds 60`.'),
  codingAgent('gemini-cli', 'Gemini CLI', 'gemini', 'Restart Gemini CLI and give it a task.', 'Its permission requests are shown here, and are answered in its terminal.'),
  framework('langgraph', 'LangGraph', ['openinference-instrumentation-langchain'], 'from openinference.instrumentation.langchain import LangChainInstrumentor\n\nLangChainInstrumentor().instrument()'),
  framework('openai-agents', 'OpenAI Agents SDK', ['openinference-instrumentation-openai-agents'], 'from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor\n\nOpenAIAgentsInstrumentor().instrument()'),
  framework(
    'crewai',
    'CrewAI',
    ['openinference-instrumentation-crewai', 'openinference-instrumentation-openai'],
    'from openinference.instrumentation.crewai import CrewAIInstrumentor\nfrom openinference.instrumentation.openai import OpenAIInstrumentor\n\nCrewAIInstrumentor().instrument(skip_dep_check=True)\nOpenAIInstrumentor().instrument()',
  ),
  framework('pydantic-ai', 'pydantic-ai', [], 'from pydantic_ai import Agent\n\nAgent.instrument_all()'),
  framework('google-adk', 'Google ADK', [], '', GENAI, 'ADK makes its own spans.'),
  framework('strands', 'Strands', [], '', [], 'Strands makes its own spans.'),
  framework('llama-index', 'LlamaIndex', ['openinference-instrumentation-llama-index'], 'from openinference.instrumentation.llama_index import LlamaIndexInstrumentor\n\nLlamaIndexInstrumentor().instrument()'),
  framework('agno', 'Agno', ['openinference-instrumentation-agno'], 'from openinference.instrumentation.agno import AgnoInstrumentor\n\nAgnoInstrumentor().instrument()'),
  {
    id: 'vercel-ai',
    label: 'Vercel AI SDK',
    group: 'Frameworks',
    dialects: ['vercel-ai'],
    steps: [
      { text: 'Install the exporter and the integration.', code: () => 'npm install @ai-sdk/otel \\\n  @opentelemetry/sdk-trace-node @opentelemetry/exporter-trace-otlp-http' },
      { text: 'Export to Queenright.', code: (place) => environment(place) },
      {
        text: 'Register the integration before the agent is created, and turn telemetry on for it.',
        code: () => `import { OpenTelemetry } from "@ai-sdk/otel";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import { registerTelemetry } from "ai";

const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
provider.register();
registerTelemetry(new OpenTelemetry());

// in the agent: telemetry: { isEnabled: true, functionId: "my_agent" }`,
      },
      { text: 'Run the agent.' },
    ],
  },
  {
    id: 'opentelemetry',
    label: 'Any OpenTelemetry',
    group: 'Your own code',
    steps: [
      { text: 'A program that exports spans of model and tool calls needs only these variables.', code: (place) => environment(place) },
      { text: 'An OpenTelemetry Collector can send a copy of the telemetry that it receives.', code: ({ otlp }) => `exporters:\n  otlphttp/queenright:\n    endpoint: ${otlp}\n\nservice:\n  pipelines:\n    traces: {exporters: [otlphttp/queenright]}\n    logs: {exporters: [otlphttp/queenright]}` },
    ],
    note: 'If telemetry already goes to another backend, Queenright can forward it unchanged: `queenright up --otlp-forward http://backend:4318`',
  },
  {
    id: 'python',
    label: 'Your own loop',
    group: 'Your own code',
    dialects: ['queenright'],
    steps: [
      { text: `Install Queenright's package. ${OWN_PACKAGE}`, code: () => `pip install ${PACKAGE}` },
      {
        text: 'Set the URLs of the service.',
        code: ({ otlp, service, needsToken }) => [`export OTEL_EXPORTER_OTLP_ENDPOINT=${otlp}`, `export QUEENRIGHT_ENDPOINT=${service}`, ...(needsToken ? ['export QUEENRIGHT_TOKEN_FILE=reporter.token', 'export OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20qrt_..."'] : [])].join('\n'),
      },
      {
        text: 'Report steps, tool calls and verdicts.',
        code: () => `from queenright.instrumentation import Worker

def search(query):  # your tool
    return [query]

with Worker("my_agent") as worker:
    with worker.step("plan") as step:
        with step.tool("search", {"q": "hive"}) as call:
            call.result(search("hive"))
        step.verdict("ACCEPT")`,
      },
    ],
    note: '`Worker(…, on_nudge=…, on_terminate=…)` lets Queenright reach the agent. Instrumentation never breaks it: it raises nothing and does not wait for the network.',
  },
]

/** The default telemetry endpoint: the host of this page, and the port in the settings if known. */
export function telemetryAddress(page: { hostname: string }, settings?: { host?: unknown; port?: unknown }): string {
  const port = typeof settings?.port === 'number' && settings.port ? settings.port : 4318
  const host = page.hostname.includes(':') && !page.hostname.startsWith('[') ? `[${page.hostname}]` : page.hostname
  return `http://${host}:${port}`
}
