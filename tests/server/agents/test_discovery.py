"""Agent discovery below the roots, and the links that agents may contain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queenright.server.agents.discovery import find_agents
from queenright.server.agents.roots import PathNotAllowedError, Roots
from tests.runtime.agents import adder


def test_circular_link_does_not_hide_other_agents(tmp_path: Path) -> None:
    root = tmp_path / "agents"
    adder(root / "adder")
    adder(root / "team" / "other")
    for folder in (root, root / "team"):
        (folder / "loop").symlink_to("loop")

    agents = find_agents(Roots([root]), ())

    assert [agent.path for agent in agents] == [str(root / "adder"), str(root / "team" / "other")]


@pytest.mark.parametrize("link", ["words.py", "functions.py", "lib", "lib/deep/words.py", "near"])
def test_agent_with_link_outside_roots_is_refused_with_reason(tmp_path: Path, link: str) -> None:
    """B8: this includes files that its code only imports."""
    root, outside_folder = tmp_path / "agents", tmp_path / "outside"
    agent = adder(root / "adder")
    adder(outside_folder)
    roots = Roots([root])
    assert roots.find_agent("adder") == agent
    if link == "near":  # the link target is below the roots, but contains a link that leads out
        (agent / link).symlink_to(root / "shared")
        (root / "shared").mkdir()
        (root / "shared" / "words.py").symlink_to(outside_folder / "functions.py")
    else:
        path = agent / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(outside_folder if link == "lib" else outside_folder / "functions.py")

    with pytest.raises(PathNotAllowedError, match=r"a link that leads out of .*agents"):
        roots.find_agent("adder")
    [discovered] = [agent for agent in find_agents(roots, ()) if agent.name == "adder"]
    assert "a link that leads out" in str(discovered.problem)


def test_links_below_the_roots_and_in_hidden_folders_are_allowed(tmp_path: Path) -> None:
    root = tmp_path / "agents"
    agent = adder(root / "adder")
    (root / "shared").mkdir()
    (agent / "shared").symlink_to(root / "shared")
    (root / "shared" / "back").symlink_to(agent)
    (agent / "loop").symlink_to("loop")
    (agent / ".venv").mkdir()
    (agent / ".venv" / "python").symlink_to("/bin/sh")

    assert Roots([root]).find_agent("adder") == agent
    assert [agent.problem for agent in find_agents(Roots([root]), ())] == [None]


def test_discovery_lists_required_inputs_and_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIVE_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("WAX_KEY", "x")
    node = {"id": "ask", "system_prompt": "Answer.", "input_keys": ["topic"], "output_keys": ["text"]}
    spec = {
        "name": "needy",
        "model": "anthropic/claude-sonnet-5",
        "credentials": ["HIVE_KEY", "WAX_KEY"],
        "graph": {"nodes": [node], "entry_points": [{"id": "start", "node_id": "ask"}]},
    }
    (tmp_path / "agent.json").write_text(json.dumps(spec), encoding="utf-8")

    [discovered] = find_agents(Roots([tmp_path]), ())

    assert discovered.problem is None
    assert (discovered.inputs, discovered.credentials) == (["topic"], ["HIVE_KEY", "WAX_KEY"])
    assert discovered.missing == ["HIVE_KEY", "ANTHROPIC_API_KEY"]
