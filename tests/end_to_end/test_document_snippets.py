"""
The Python snippets in the docs run as files, with a scripted model in place of one that needs a key.
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
"""The scripted replies that replace the documented model."""

LAST_LINES = {
    "runtime.md": ["completed {'reply': 'Dear human, ...'}"],
    "run-agents.md": ["completed {'report': 'report.md'}"],
}
"""The last line that each snippet prints, if the page does not show its output."""


def list_snippets(page: str) -> list[tuple[str, str]]:
    """Return each Python snippet of a page with its documented output, which may be empty."""
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
    ("page", "index"),
    [(page, index) for page in ("models.md", *LAST_LINES) for index in range(len(list_snippets(page)))],
)
def test_snippet_runs_and_prints_the_documented_output(page: str, index: int, tmp_path: Path) -> None:
    code, snippet = list_snippets(page)[index]

    output = run_snippet(page, code, tmp_path)

    if snippet:
        assert output == snippet
    else:
        assert output.splitlines()[-1] == LAST_LINES[page][index]


@pytest.mark.parametrize("page", ["models.md", *LAST_LINES])
def test_every_snippet_is_a_complete_file(page: str) -> None:
    snippets = list_snippets(page)

    assert snippets
    for code, _ in snippets:
        assert code.rstrip().endswith("asyncio.run(main())")


@pytest.mark.parametrize("page", ["README.md", "docs/run-agents.md", "docs/models.md"])
def test_make_targets_on_pages_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    mentioned = set(
        re.findall(r"(?:`|^)make ([a-z]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    )

    assert mentioned
    assert mentioned <= targets
