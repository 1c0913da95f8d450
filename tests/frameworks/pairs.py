"""Pairs of a framework and its instrumentation: packages, program and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.clients.clients import API_KEY, Client, RunSetup
from tests.clients.scenarios import PROMPT, SCENARIOS, Scenario
from tests.isolation import ROOT

PROGRAMS: Final = Path(__file__).with_name("programs")
OPENTELEMETRY: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "prometheus-client")
"""Packages that each program needs besides its framework; the last is for `queenright.instrumentation`."""

_HANG_SCENARIOS: Final = ("hang_first", "hang_later")
VARIANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("healthy", "loop", "provider_429", "provider_500", "killed", "two_at_once"),
    "hidden": ("healthy",),
    "watched": ("healthy", *_HANG_SCENARIOS, "killed"),
}
"""
The variants of a program, with the scenarios of each.

``""`` has only OpenTelemetry and ``OTEL_EXPORTER_OTLP_ENDPOINT``. ``hidden`` sends no content of prompts,
arguments and results. ``watched`` also calls ``watch_spans()``, which reports open work. Node has no
``watch_spans()``, so its programs hang without it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One framework with one instrumentation."""

    name: str
    title: str
    packages: tuple[str, ...]
    """The packages of the framework and the instrumentation, which the documentation lists with versions."""
    extra_packages: tuple[str, ...] = ()
    """Packages that the program needs and the documentation does not list."""
    tool_calls: int = 3
    """Number of tool calls in a healthy run, including the call by which some agents answer."""
    program: str
    instrumentation: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Settings of the program that do not concern telemetry."""
    required: Mapping[str, str] = field(default_factory=dict)
    """Variables without which the pair sends no spans, or no content."""
    hiding_variables: Mapping[str, str] | None = None
    """Variables that keep content out of the spans; None if there is no such setting."""

    @property
    def is_npm(self) -> bool:
        """Whether the packages are from npm, and the program is for Node."""
        return self.program.endswith(".mjs")

    @property
    def variants(self) -> Mapping[str, tuple[str, ...]]:
        """Return the variants of the pair's program, with the scenarios of each."""
        variants = {**VARIANTS, "": (*VARIANTS[""], *_HANG_SCENARIOS)} if self.is_npm else VARIANTS
        excluded_variants = {"watched"} if self.is_npm else set()
        if self.hiding_variables is None:
            excluded_variants.add("hidden")
        return {
            variant: scenarios for variant, scenarios in variants.items() if variant not in excluded_variants
        }

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

    def _prepare(self, setup: RunSetup, scenario: Scenario, variant: str) -> dict[str, str]:
        environment = {
            "OPENAI_API_KEY": API_KEY,
            "OPENAI_BASE_URL": f"{setup.provider}/v1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": setup.otlp,
            "PROMPT": PROMPT,
            "INSTRUMENTATION": self.instrumentation,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TRACELOOP_TELEMETRY": "false",
            **self.environment,
            **self.required,
        }
        if self.program == "anthropic_agent.py":
            environment |= {"ANTHROPIC_API_KEY": API_KEY, "ANTHROPIC_BASE_URL": setup.provider}
        if self.program == "adk_agent.py":
            environment |= {"GOOGLE_API_KEY": API_KEY, "GOOGLE_GEMINI_BASE_URL": setup.provider}
        if variant == "hidden":
            environment |= {"CONTENT": "off", **(self.hiding_variables or {})}
        if variant == "watched":
            environment |= {"WATCH": "1", "PYTHONPATH": str(ROOT / "instrumentation")}
        return environment


_HIDE_OPENINFERENCE: Final = {"OPENINFERENCE_HIDE_INPUTS": "true", "OPENINFERENCE_HIDE_OUTPUTS": "true"}
_HIDE_OPENLLMETRY: Final = {"TRACELOOP_TRACE_CONTENT": "false"}
_SHOW_GENAI: Final = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
_HIDE_GENAI: Final = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}
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
            extra_packages=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="openinference",
            hiding_variables=_HIDE_OPENINFERENCE,
        ),
        Pair(
            name="langgraph-openllmetry",
            title="LangGraph, OpenLLMetry",
            packages=("langgraph", "opentelemetry-instrumentation-langchain"),
            extra_packages=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="openllmetry",
            hiding_variables=_HIDE_OPENLLMETRY,
        ),
        Pair(
            name="langgraph-langsmith",
            title="LangGraph, LangSmith's OpenTelemetry export",
            packages=("langgraph", "langsmith[otel]"),
            extra_packages=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="langsmith",
            required={
                "LANGSMITH_TRACING": "true",
                "LANGSMITH_OTEL_ENABLED": "true",
                "LANGSMITH_OTEL_ONLY": "true",
            },
            hiding_variables={"LANGSMITH_HIDE_INPUTS": "true", "LANGSMITH_HIDE_OUTPUTS": "true"},
        ),
        Pair(
            name="langgraph-genai",
            title="LangGraph, OpenTelemetry's GenAI instrumentation",
            packages=("langgraph", "opentelemetry-instrumentation-genai-langchain"),
            extra_packages=("langchain", "langchain-openai"),
            program="langgraph_agent.py",
            instrumentation="genai",
            required=_SHOW_GENAI,
            hiding_variables=_HIDE_GENAI,
        ),
        Pair(
            name="openai-agents-openinference",
            title="OpenAI Agents SDK, OpenInference",
            packages=("openai-agents", "openinference-instrumentation-openai-agents"),
            program="openai_agent.py",
            instrumentation="openinference",
            hiding_variables=_HIDE_OPENINFERENCE,
        ),
        Pair(
            name="openai-agents-openllmetry",
            title="OpenAI Agents SDK, OpenLLMetry",
            packages=("openai-agents", "opentelemetry-instrumentation-openai-agents"),
            program="openai_agent.py",
            instrumentation="openllmetry",
            hiding_variables=_HIDE_OPENLLMETRY,
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
            extra_packages=("opentelemetry-instrumentation-genai-openai",),
            program="openai_agent.py",
            instrumentation="genai",
            required=_SHOW_GENAI,
            hiding_variables=_HIDE_GENAI,
        ),
        Pair(
            name="openai-agents-v2",
            title="OpenAI Agents SDK, OpenTelemetry's instrumentation v2",
            packages=("openai-agents", "opentelemetry-instrumentation-openai-agents-v2"),
            program="openai_agent.py",
            instrumentation="v2",
            required=_SHOW_GENAI,
            hiding_variables=_HIDE_GENAI,
        ),
        Pair(
            name="crewai-openlit",
            title="CrewAI, OpenLIT",
            packages=("crewai", "openlit"),
            program="crewai_agent.py",
            instrumentation="openlit",
            environment=_QUIET_CREWAI,
            hiding_variables={},
        ),
        Pair(
            name="crewai-openinference",
            title="CrewAI, OpenInference",
            packages=("crewai", "openinference-instrumentation-crewai"),
            extra_packages=("openinference-instrumentation-openai",),
            program="crewai_agent.py",
            instrumentation="openinference",
            environment=_QUIET_CREWAI,
            hiding_variables=_HIDE_OPENINFERENCE,
        ),
        Pair(
            name="anthropic-openllmetry",
            title="Anthropic's client, OpenLLMetry",
            packages=("anthropic", "opentelemetry-instrumentation-anthropic"),
            program="anthropic_agent.py",
            hiding_variables=_HIDE_OPENLLMETRY,
        ),
        Pair(
            name="google-adk",
            title="Google ADK, its own spans",
            packages=("google-adk",),
            program="adk_agent.py",
            required=_SHOW_GENAI,
            hiding_variables=_HIDE_GENAI,
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
            hiding_variables={},
        ),
        Pair(
            name="llama-index-openinference",
            title="LlamaIndex, OpenInference",
            packages=("llama-index-core", "openinference-instrumentation-llama-index"),
            extra_packages=("llama-index-llms-openai-like",),
            program="llama_index_agent.py",
            instrumentation="openinference",
            hiding_variables=_HIDE_OPENINFERENCE,
        ),
        Pair(
            name="smolagents-openinference",
            title="smolagents, OpenInference",
            packages=("smolagents[openai]", "openinference-instrumentation-smolagents"),
            tool_calls=4,
            program="smolagents_agent.py",
            hiding_variables=_HIDE_OPENINFERENCE,
        ),
        Pair(
            name="agno-openinference",
            title="Agno, OpenInference",
            packages=("agno", "openinference-instrumentation-agno"),
            extra_packages=("openai",),
            program="agno_agent.py",
            hiding_variables=_HIDE_OPENINFERENCE,
        ),
        Pair(
            name="agent-framework",
            title="Microsoft Agent Framework, its own spans",
            packages=("agent-framework-core", "agent-framework-openai"),
            program="agent_framework_agent.py",
            required={"ENABLE_SENSITIVE_DATA": "true"},
            hiding_variables={"ENABLE_SENSITIVE_DATA": "false"},
        ),
        Pair(
            name="vercel-ai-sdk",
            title="Vercel AI SDK, its own spans",
            packages=("ai", "@ai-sdk/otel"),
            extra_packages=_NODE_PACKAGES,
            program="vercel_agent.mjs",
            hiding_variables={},
        ),
        Pair(
            name="vercel-ai-sdk-legacy",
            title="Vercel AI SDK, its older spans (versions 4 to 6)",
            packages=("ai", "@ai-sdk/otel"),
            extra_packages=_NODE_PACKAGES,
            program="vercel_agent.mjs",
            instrumentation="legacy",
            hiding_variables={},
        ),
    )
}


def list_runs(names: list[str], scenarios: list[str]) -> Iterator[tuple[Pair, Scenario, str]]:
    """Yield the pair, scenario and variant of each recording of these pairs in these scenarios."""
    for pair in (PAIRS[name] for name in names):
        for variant, variant_scenarios in pair.variants.items():
            for scenario in variant_scenarios:
                if scenario in scenarios:
                    yield pair, SCENARIOS[scenario], variant
