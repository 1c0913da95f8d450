"""Tools of the model: read a page, and write the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from queenright.runtime.tooling.tools import ToolError


def read_lines(root: str, page: str, first: int, last: int) -> str:
    """
    Read some lines of a page, at most 60.

    Args:
        root: The folder that was checked.
        page: The page, as in the findings.
        first: The first line, counted from 1.
    """
    path = (Path(root) / page).resolve()
    if not path.is_relative_to(Path(root).resolve()) or path.suffix != ".md" or not path.is_file():
        raise ToolError(f"there is no page {page!r} in {root}")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    first = max(first, 1)
    selected_lines = lines[first - 1 : min(last, first + 59)]
    return "\n".join(f"{number}: {line}" for number, line in enumerate(selected_lines, first))


def write_report(introduction: str, first: Literal["links", "commands"], data_dir: Path) -> str:
    """
    Write the report: your introduction, then all findings. Returns the file's name.

    Args:
        introduction: At most three sentences: what to fix first, and why.
    """
    findings = json.loads((data_dir / "findings.json").read_text(encoding="utf-8"))
    sections = [
        _format_section("Broken links", findings["broken_links"], "target"),
        _format_section("Stale commands", findings["stale_commands"], "command"),
    ]
    if first == "commands":
        sections.reverse()
    text = "\n\n".join(["# Documentation", introduction, *(section for section in sections if section)])
    (data_dir / "report.md").write_text(text + "\n", encoding="utf-8")
    return "report.md"


def _format_section(title: str, rows: list[dict[str, Any]], key: str) -> str:
    if not rows:
        return ""
    lines = [f"- {row['page']}, line {row['line']}: `{row[key]}`: {row['fault']}" for row in rows]
    return "\n".join((f"## {title} ({len(rows)})", "", *lines))
