"""
Update the reviewed copies of the prompts after a review of the change.

``python -m tests.judge.renew_prompts``

Give a changed prompt a new version first: spans identify the text that a model received by its version.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from importlib import resources
from pathlib import Path

from queenright.health.settings import HealthSettings
from queenright.judge.prompting import Prompt, chat_prompt, escalation_prompt, judge_prompt, queen_prompt

SNAPSHOTS = Path(__file__).parent / "snapshots"
VERSIONS = SNAPSHOTS / "versions.json"


def render_prompts() -> dict[str, Prompt]:
    """Return every prompt with the default settings, by name."""
    prompts = (judge_prompt(HealthSettings()), queen_prompt(), escalation_prompt(), chat_prompt())
    return {prompt.name: prompt for prompt in prompts}


def hash_prompt_file(name: str) -> str:
    """Return the hash of a prompt's file, with its placeholders."""
    file = resources.files("queenright.judge") / "prompts" / f"{name}.md"
    return sha256(file.read_bytes()).hexdigest()[:16]


def load_versions() -> dict[str, dict[str, str]]:
    """Return the hash of every version so far: ``{name: {version: hash}}``."""
    return json.loads(VERSIONS.read_text(encoding="utf-8")) if VERSIONS.is_file() else {}


def main() -> None:
    """Write the rendered prompts and the hashes if every changed prompt has a new version."""
    versions = load_versions()
    for name, prompt in render_prompts().items():
        before = versions.setdefault(name, {}).setdefault(str(prompt.version), hash_prompt_file(name))
        if before != hash_prompt_file(name):
            sys.exit(f"{name}.md has changed but still has version {prompt.version}; raise the version first")
        (SNAPSHOTS / f"{name}.md").write_text(prompt.text, encoding="utf-8")
    VERSIONS.write_text(json.dumps(versions, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
