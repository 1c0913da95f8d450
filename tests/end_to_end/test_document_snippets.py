"""
The Python snippets in the docs, saved as files and run, with a script in place of a model that needs a key.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.isolation import environment

ROOT = Path(__file__).parents[2]
MODEL = "anthropic/claude-sonnet-4-5"

REPLIES: dict[str, list[dict[str, Any]]] = {
    "runtime.md": [{"tool_calls": [{"name": "set_output", "arguments": {"reply": "Dear human, ..."}}]}],
}
"""The script that replaces the documented model."""

PRINTED = {
    "runtime.md": ["completed {'reply': 'Dear human, ...'}"],
    "run-agents.md": ["completed {'report': 'report.md'}"],
}
"""The last line that a snippet prints, if the page does not show it."""


def list_snippets(page: str) -> list[tuple[str, str]]:
    """Return the Python snippets of a page, each with its documented output."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL)


def run_snippet(page: str, code: str, folder: Path) -> str:
    script = folder / "replies.json"
    script.write_text(json.dumps({"replies": REPLIES.get(page, [])}), encoding="utf-8")
    # The agent of an example has its own script.
    name = "scripted:replies.json" if "AgentRunner" in code else f"scripted:{script}"
    file = folder / "snippet.py"
    file.write_text(code.replace(MODEL, name), encoding="utf-8")
    (folder / "examples").symlink_to(ROOT / "examples")
    result = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=folder,
        env=environment(HOME=str(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize(
    ("page", "at"),
    [(page, at) for page in ("models.md", *PRINTED) for at in range(len(list_snippets(page)))],
)
def test_snippet_runs_and_prints_the_documented_output(page: str, at: int, tmp_path: Path) -> None:
    code, snippet = list_snippets(page)[at]

    printed = run_snippet(page, code, tmp_path)

    if snippet:
        assert printed == snippet
    else:
        assert printed.splitlines()[-1] == PRINTED[page][at]


@pytest.mark.parametrize("page", ["models.md", *PRINTED])
def test_every_snippet_is_a_complete_file(page: str) -> None:
    found = list_snippets(page)

    assert found
    for code, _ in found:
        assert code.rstrip().endswith("asyncio.run(main())")


@pytest.mark.parametrize("page", ["README.md", "docs/run-agents.md", "docs/models.md"])
def test_make_targets_on_pages_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))

    assert named
    assert named <= targets
