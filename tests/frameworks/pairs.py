"""Pairs of a framework and its instrumentation: packages, program and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.clients.clients import API_KEY, Client, RunPlace
from tests.clients.scenarios import PROMPT, SCENARIOS, Scenario
from tests.isolation import ROOT

PROGRAMS: Final = Path(__file__).with_name("programs")
OPENTELEMETRY: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "prometheus-client")
"""Packages that each program needs besides its framework; the last is for `queenright.instrumentation`."""

_HANGS: Final = ("hang_first", "hang_later")
VARIANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("healthy", "loop", "provider_429", "provider_500", "killed", "two_at_once"),
    "hidden": ("healthy",),
    "watched": ("healthy", *_HANGS, "killed"),
}
"""
How a program runs, and in which scenarios.

``""``: with nothing but OpenTelemetry and ``OTEL_EXPORTER_OTLP_ENDPOINT``. ``hidden``: without the content of
prompts, arguments and results. ``watched``: with one line more, ``watch_spans()``, for open work; a program
for Node has none, and hangs without.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One framework with one instrumentation."""

    name: str
    title: str
    packages: tuple[str, ...]
    """The framework's packages, then the instrumentation's, which the documentation names with versions."""
    also: tuple[str, ...] = ()
    """Further packages."""
    tool_calls: int = 3
    """Tool calls of a healthy run; one more if the agent answers through a tool."""
    program: str
    instrumentation: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Settings of the program that do not concern telemetry."""
    required: Mapping[str, str] = field(default_factory=dict)
    """Variables without which the pair sends no spans, or no content."""
    hides: Mapping[str, str] | None = None
    """Variables that keep content out of the spans; None: there is no such setting."""

    @property
    def is_npm(self) -> bool:
        """Whether its packages are from npm, and its program is for Node."""
        return self.program.endswith(".mjs")

    @property
    def variants(self) -> Mapping[str, tuple[str, ...]]:
        """Return how its program runs, and in which scenarios."""
        runs = {**VARIANTS, "": (*VARIANTS[""], *_HANGS)} if self.is_npm else VARIANTS
        without = {"watched"} if self.is_npm else set()
        if self.hides is None:
            without.add("hidden")
        return {variant: among for variant, among in runs.items() if variant not in without}

    @property
    def client(self) -> Client:
        """Return the pair as a client that runs in a scenario."""
        return Client(
            name=self.name,
            package=self.packages[0],
            program=self.program,
            variants=self.variants,
            prepare=self._prepare,
            arguments=lambda scenario: [],
        )

    def _prepare(self, place: RunPlace, scenario: Scenario, variant: str) -> dict[str, str]:
        environment = {
            "OPENAI_API_KEY": API_KEY,
            "OPENAI_BASE_URL": f"{place.provider}/v1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": place.otlp,
            "PROMPT": PROMPT,
            "INSTRUMENTATION": self.instrumentation,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TRACELOOP_TELEMETRY": "false",
            **self.environment,
            **self.required,
        }
        if self.program == "anthropic_agent.py":
            environment |= {"ANTHROPIC_API_KEY": API_KEY, "ANTHROPIC_BASE_URL": place.provider}
        if self.program == "adk_agent.py":
            environment |= {"GOOGLE_API_KEY": API_KEY, "GOOGLE_GEMINI_BASE_URL": place.provider}
        if variant == "hidden":
            environment |= {"CONTENT": "off", **(self.hides or {})}
        if variant == "watched":
            environment |= {"WATCH": "1", "PYTHONPATH": str(ROOT / "instrumentation")}
        return environment


_HIDES_OPENINFERENCE: Final = {"OPENINFERENCE_HIDE_INPUTS": "true", "OPENINFERENCE_HIDE_OUTPUTS": "true"}
_HIDES_OPENLLMETRY: Final = {"TRACELOOP_TRACE_CONTENT": "false"}
_SHOWS_GENAI: Final = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
_HIDES_GENAI: Final = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}
_QUIET_CREWAI: Final = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}
_NODE_PACKAGES: Final = (
    "@ai-sdk/openai",
    "@opentelemetry/api",
    "@opentelemetry/exporter-trace-otlp-http",
    "@opentelemetry/sdk-trace-node",
    "zod",
)

PAIRS: Final = {
    pair.name: pair
    for pair in (
        Pair(
            name="langgraph-openinference",
            title="LangGraph, OpenInference",
            packages=("langgraph", "openinference-instrumentation-langchain"),
            also=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="openinference",
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="langgraph-openllmetry",
            title="LangGraph, OpenLLMetry",
            packages=("langgraph", "opentelemetry-instrumentation-langchain"),
            also=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="openllmetry",
            hides=_HIDES_OPENLLMETRY,
        ),
        Pair(
            name="langgraph-langsmith",
            title="LangGraph, LangSmith's OpenTelemetry export",
            packages=("langgraph", "langsmith[otel]"),
            also=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="langsmith",
            required={
                "LANGSMITH_TRACING": "true",
                "LANGSMITH_OTEL_ENABLED": "true",
                "LANGSMITH_OTEL_ONLY": "true",
            },
            hides={"LANGSMITH_HIDE_INPUTS": "true", "LANGSMITH_HIDE_OUTPUTS": "true"},
        ),
        Pair(
            name="langgraph-genai",
            title="LangGraph, OpenTelemetry's GenAI instrumentation",
            packages=("langgraph", "opentelemetry-instrumentation-genai-langchain"),
            also=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="genai",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="openai-agents-openinference",
            title="OpenAI Agents SDK, OpenInference",
            packages=("openai-agents", "openinference-instrumentation-openai-agents"),
            program="openai_agent.py",
            instrumentation="openinference",
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="openai-agents-openllmetry",
            title="OpenAI Agents SDK, OpenLLMetry",
            packages=("openai-agents", "opentelemetry-instrumentation-openai-agents"),
            program="openai_agent.py",
            instrumentation="openllmetry",
            hides=_HIDES_OPENLLMETRY,
        ),
        Pair(
            name="openai-agents-logfire",
            title="OpenAI Agents SDK, Logfire",
            packages=("openai-agents", "logfire"),
            program="openai_agent.py",
            instrumentation="logfire",
        ),
        Pair(
            name="openai-agents-genai",
            title="OpenAI Agents SDK, OpenTelemetry's GenAI instrumentation",
            packages=("openai-agents", "opentelemetry-instrumentation-genai-openai-agents"),
            also=("opentelemetry-instrumentation-genai-openai",),
            program="openai_agent.py",
            instrumentation="genai",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="openai-agents-v2",
            title="OpenAI Agents SDK, OpenTelemetry's instrumentation v2",
            packages=("openai-agents", "opentelemetry-instrumentation-openai-agents-v2"),
            program="openai_agent.py",
            instrumentation="v2",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="crewai-openlit",
            title="CrewAI, OpenLIT",
            packages=("crewai", "openlit"),
            program="crewai_agent.py",
            instrumentation="openlit",
            environment=_QUIET_CREWAI,
            hides={},
        ),
        Pair(
            name="crewai-openinference",
            title="CrewAI, OpenInference",
            packages=("crewai", "openinference-instrumentation-crewai"),
            also=("openinference-instrumentation-openai",),
            program="crewai_agent.py",
            instrumentation="openinference",
            environment=_QUIET_CREWAI,
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="anthropic-openllmetry",
            title="Anthropic's client, OpenLLMetry",
            packages=("anthropic", "opentelemetry-instrumentation-anthropic"),
            program="anthropic_agent.py",
            hides=_HIDES_OPENLLMETRY,
        ),
        Pair(
            name="google-adk",
            title="Google ADK, its own spans",
            packages=("google-adk",),
            program="adk_agent.py",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="strands",
            title="Strands, its own spans",
            packages=("strands-agents[openai,otel]",),
            program="strands_agent.py",
        ),
        Pair(
            name="pydantic-ai",
            title="pydantic-ai, its own spans",
            packages=("pydantic-ai-slim[openai]",),
            program="pydantic_ai_agent.py",
            hides={},
        ),
        Pair(
            name="llama-index-openinference",
            title="LlamaIndex, OpenInference",
            packages=("llama-index-core", "openinference-instrumentation-llama-index"),
            also=("llama-index-llms-openai-like",),
            program="llama_index_agent.py",
            instrumentation="openinference",
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="smolagents-openinference",
            title="smolagents, OpenInference",
            packages=("smolagents[openai]", "openinference-instrumentation-smolagents"),
            tool_calls=4,
            program="smolagents_agent.py",
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="agno-openinference",
            title="Agno, OpenInference",
            packages=("agno", "openinference-instrumentation-agno"),
            also=("openai",),
            program="agno_agent.py",
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="agent-framework",
            title="Microsoft Agent Framework, its own spans",
            packages=("agent-framework-core", "agent-framework-openai"),
            program="agent_framework_agent.py",
            required={"ENABLE_SENSITIVE_DATA": "true"},
            hides={"ENABLE_SENSITIVE_DATA": "false"},
        ),
        Pair(
            name="vercel-ai-sdk",
            title="Vercel AI SDK, its own spans",
            packages=("ai", "@ai-sdk/otel"),
            also=_NODE_PACKAGES,
            program="vercel_agent.mjs",
            hides={},
        ),
        Pair(
            name="vercel-ai-sdk-legacy",
            title="Vercel AI SDK, its older spans (versions 4 to 6)",
            packages=("ai", "@ai-sdk/otel"),
            also=_NODE_PACKAGES,
            program="vercel_agent.mjs",
            instrumentation="legacy",
            hides={},
        ),
    )
}


def list_runs(names: list[str], scenarios: list[str]) -> Iterator[tuple[Pair, Scenario, str]]:
    """Yield pair, scenario and variant of each recording of these pairs in these scenarios."""
    for pair in (PAIRS[name] for name in names):
        for variant, among in pair.variants.items():
            for scenario in among:
                if scenario in scenarios:
                    yield pair, SCENARIOS[scenario], variant
