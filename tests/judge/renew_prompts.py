"""
Renew what the tests know of the prompts, after a look at what changed.

``python -m tests.judge.renew_prompts``

A text that changed must have a new version first: what a model was told is read from spans by it.
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


def rendered() -> dict[str, Prompt]:
    """Every prompt as it is by default, by name."""
    prompts = (judge_prompt(HealthSettings()), queen_prompt(), escalation_prompt(), chat_prompt())
    return {prompt.name: prompt for prompt in prompts}


def fingerprint(name: str) -> str:
    """The hash of a prompt's file, placeholders and all."""
    file = resources.files("queenright.judge") / "prompts" / f"{name}.md"
    return sha256(file.read_bytes()).hexdigest()[:16]


def known() -> dict[str, dict[str, str]]:
    """The hash of every version that there was: {name: {version: hash}}."""
    return json.loads(VERSIONS.read_text(encoding="utf-8")) if VERSIONS.is_file() else {}


def main() -> None:
    """Write the rendered texts and the hashes, if every change has a version of its own."""
    versions = known()
    for name, prompt in rendered().items():
        before = versions.setdefault(name, {}).setdefault(str(prompt.version), fingerprint(name))
        if before != fingerprint(name):
            sys.exit(f"{name}.md has changed and is still version {prompt.version}: raise it first")
        (SNAPSHOTS / f"{name}.md").write_text(prompt.text, encoding="utf-8")
    VERSIONS.write_text(json.dumps(versions, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
