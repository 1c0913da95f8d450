"""Models that an agent cannot use are reported before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from queenright.runtime.agents.runner import AgentRunner, InvalidAgentError
from queenright.runtime.llm.litellm_provider import LiteLlmProvider, ProviderUnavailableError
from tests.runtime.agents import adder, talker

RULES_MODEL_ERROR = (
    "the model 'queenright/rules' is for judge and queen only: for an agent, use a litellm model, "
    "such as anthropic/claude-sonnet-4-5, or scripted:PATH"
)


def find_errors(agent: Path, model: str) -> Sequence[str]:
    return AgentRunner.load(agent, model=model, environment={}).validate().errors


def test_rules_model_is_refused_for_agents(tmp_path: Path) -> None:
    assert find_errors(talker(tmp_path / "agent"), "queenright/rules") == (RULES_MODEL_ERROR,)


def test_misspelt_provider_is_found_before_start(tmp_path: Path) -> None:
    [error] = find_errors(talker(tmp_path / "agent"), "antropic/claude-sonnet-4-5")

    assert "'antropic/claude-sonnet-4-5'" in str(error)
    assert "anthropic?" in str(error)


async def test_agent_with_a_misspelt_provider_is_not_started(tmp_path: Path) -> None:
    runner = AgentRunner.load(
        adder(tmp_path / "agent"), model="notaprovider/x", storage=tmp_path / "here", environment={}
    )

    with pytest.raises(InvalidAgentError, match="knows no provider for the model 'notaprovider/x'"):
        await runner.start()


@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-of-tomorrow",
        "gpt-4o",
        "hosted_vllm/llama",
        "openrouter/a/b",
        "github_copilot/gpt-4o",
    ],
)
def test_models_of_known_providers_are_accepted(name: str) -> None:
    LiteLlmProvider(name).check()


@pytest.mark.parametrize("name", ["notaprovider/x", "gtp", "x" * 500])
def test_model_without_known_provider_is_rejected(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProviderUnavailableError, match="litellm knows no provider"):
        LiteLlmProvider(name).check()

    assert capfd.readouterr().out == ""


def test_provider_that_the_program_registered_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import litellm  # imported here, because it takes seconds, and every test process imports this file

    monkeypatch.setattr(litellm, "custom_provider_map", [{"provider": "ours", "custom_handler": object()}])

    LiteLlmProvider("ours/model").check()
