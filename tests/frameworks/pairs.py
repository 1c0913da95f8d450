"""The pairs of a framework and what makes its spans: which packages, which program, which settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.clients.clients import API_KEY, Client, Place
from tests.clients.scenarios import PROMPT, SCENARIOS, Scenario
from tests.isolation import ROOT

PROGRAMS: Final = Path(__file__).with_name("programs")
OPENTELEMETRY: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "prometheus-client")
"""What each program needs besides its framework; the last, for `queenright.instrumentation`."""

VARIANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("healthy", "loop", "provider_429", "provider_500", "killed", "two_at_once"),
    "hidden": ("healthy",),
    "watched": ("healthy", "hang_first", "hang_later", "killed"),
}
"""
How a program runs, and in which scenarios.

``""``: with nothing but OpenTelemetry and ``OTEL_EXPORTER_OTLP_ENDPOINT``. ``hidden``: without the content of
prompts, arguments and results. ``watched``: with one line more, ``watch_spans()``, for open work.
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
    program: str
    instrumentation: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Settings of the program that are not about telemetry."""
    required: Mapping[str, str] = field(default_factory=dict)
    """Variables that the pair needs to send spans, or their content, at all."""
    hides: Mapping[str, str] | None = None
    """Variables that keep content out of the spans; None: there is no such setting."""

    @property
    def client(self) -> Client:
        """The pair as something that runs in a scenario."""
        return Client(
            name=self.name,
            package=self.packages[0],
            program="python",
            variants=VARIANTS,
            prepare=self._prepare,
            arguments=lambda scenario: [str(PROGRAMS / f"{self.program}.py")],
        )

    def _prepare(self, place: Place, scenario: Scenario, variant: str) -> dict[str, str]:
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
        if self.program == "anthropic_agent":
            environment |= {"ANTHROPIC_API_KEY": API_KEY, "ANTHROPIC_BASE_URL": place.provider}
        if self.program == "adk_agent":
            environment |= {"GOOGLE_API_KEY": API_KEY, "GOOGLE_GEMINI_BASE_URL": place.provider}
        if variant == "hidden":
            environment |= {"CONTENT": "off", **(self.hides or {})}
        if variant == "watched":
            environment |= {"WATCH": "1", "PYTHONPATH": str(ROOT / "instrumentation")}
        return environment


_LANGGRAPH: Final = ("langgraph", "langchain")
_HIDES_OPENINFERENCE: Final = {"OPENINFERENCE_HIDE_INPUTS": "true", "OPENINFERENCE_HIDE_OUTPUTS": "true"}
_HIDES_OPENLLMETRY: Final = {"TRACELOOP_TRACE_CONTENT": "false"}
_SHOWS_GENAI: Final = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
_HIDES_GENAI: Final = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}
_QUIET_CREWAI: Final = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

PAIRS: Final = {
    pair.name: pair
    for pair in (
        Pair(
            name="langgraph-openinference",
            title="LangGraph, OpenInference",
            packages=("langgraph", "openinference-instrumentation-langchain"),
            also=("langchain", "langchain-openai"),
            program="langgraph_agent",
            instrumentation="openinference",
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="langgraph-openllmetry",
            title="LangGraph, OpenLLMetry",
            packages=("langgraph", "opentelemetry-instrumentation-langchain"),
            also=("langchain", "langchain-openai"),
            program="langgraph_agent",
            instrumentation="openllmetry",
            hides=_HIDES_OPENLLMETRY,
        ),
        Pair(
            name="langgraph-langsmith",
            title="LangGraph, LangSmith's OpenTelemetry export",
            packages=("langgraph", "langsmith[otel]"),
            also=("langchain", "langchain-openai"),
            program="langgraph_agent",
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
            program="langgraph_agent",
            instrumentation="genai",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="openai-agents-openinference",
            title="OpenAI Agents SDK, OpenInference",
            packages=("openai-agents", "openinference-instrumentation-openai-agents"),
            program="openai_agent",
            instrumentation="openinference",
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="openai-agents-openllmetry",
            title="OpenAI Agents SDK, OpenLLMetry",
            packages=("openai-agents", "opentelemetry-instrumentation-openai-agents"),
            program="openai_agent",
            instrumentation="openllmetry",
            hides=_HIDES_OPENLLMETRY,
        ),
        Pair(
            name="openai-agents-logfire",
            title="OpenAI Agents SDK, Logfire",
            packages=("openai-agents", "logfire"),
            program="openai_agent",
            instrumentation="logfire",
        ),
        Pair(
            name="openai-agents-genai",
            title="OpenAI Agents SDK, OpenTelemetry's GenAI instrumentation",
            packages=("openai-agents", "opentelemetry-instrumentation-genai-openai-agents"),
            also=("opentelemetry-instrumentation-genai-openai",),
            program="openai_agent",
            instrumentation="genai",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="openai-agents-v2",
            title="OpenAI Agents SDK, OpenTelemetry's instrumentation v2",
            packages=("openai-agents", "opentelemetry-instrumentation-openai-agents-v2"),
            program="openai_agent",
            instrumentation="v2",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="crewai-openlit",
            title="CrewAI, OpenLIT",
            packages=("crewai", "openlit"),
            program="crewai_agent",
            instrumentation="openlit",
            environment=_QUIET_CREWAI,
            hides={},
        ),
        Pair(
            name="crewai-openinference",
            title="CrewAI, OpenInference",
            packages=("crewai", "openinference-instrumentation-crewai"),
            also=("openinference-instrumentation-openai",),
            program="crewai_agent",
            instrumentation="openinference",
            environment=_QUIET_CREWAI,
            hides=_HIDES_OPENINFERENCE,
        ),
        Pair(
            name="anthropic-openllmetry",
            title="Anthropic's client, OpenLLMetry",
            packages=("anthropic", "opentelemetry-instrumentation-anthropic"),
            program="anthropic_agent",
            hides=_HIDES_OPENLLMETRY,
        ),
        Pair(
            name="google-adk",
            title="Google ADK, its own spans",
            packages=("google-adk",),
            program="adk_agent",
            required=_SHOWS_GENAI,
            hides=_HIDES_GENAI,
        ),
        Pair(
            name="strands",
            title="Strands, its own spans",
            packages=("strands-agents[openai,otel]",),
            program="strands_agent",
        ),
        Pair(
            name="pydantic-ai",
            title="pydantic-ai, its own spans",
            packages=("pydantic-ai-slim[openai]",),
            program="pydantic_ai_agent",
            hides={},
        ),
    )
}


def list_runs(names: list[str], scenarios: list[str]) -> Iterator[tuple[Pair, Scenario, str]]:
    """Yield pair, scenario and variant of what is recorded of these pairs in these scenarios."""
    for pair in (PAIRS[name] for name in names):
        for variant, among in VARIANTS.items():
            if variant == "hidden" and pair.hides is None:
                continue
            for scenario in among:
                if scenario in scenarios:
                    yield pair, SCENARIOS[scenario], variant
