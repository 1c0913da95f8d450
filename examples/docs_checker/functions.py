"""Nodes without a model: they find pages, broken links and stale commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from markdown import find_links, list_anchors, split_lines
from pydantic import Field

from queenright.runtime.inputs import InvalidInputError

_SKIPPED = {"node_modules", "build", "dist"}
_SHELLS = {"sh", "bash", "shell", "console", "zsh"}
_MAKE_TARGET = re.compile(r"^([A-Za-z0-9_.-]+(?:\s+[A-Za-z0-9_.-]+)*)\s*:(?!=)", re.MULTILINE)


def list_pages(
    folder: Annotated[str, Field(description="Path of a folder with Markdown files.", examples=["docs"])],
) -> dict[str, Any]:
    """Return every Markdown file below ``folder``, without hidden and built folders."""
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise InvalidInputError(
            f"there is no folder {folder!r}; the input `folder` is the path of a folder with Markdown files, "
            "such as docs, relative to where Queenright was started"
        )
    pages = []
    for path in sorted(root.rglob("*.md")):
        relative_path = path.relative_to(root)
        if not any(part.startswith(".") or part in _SKIPPED for part in relative_path.parts):
            pages.append(relative_path.as_posix())
    return {"root": str(root), "pages": pages}


def find_broken_links(root: str, pages: list[str]) -> dict[str, Any]:
    """Return links to missing files and headings. Links to other hosts are not followed."""
    texts: dict[Path, str] = {}

    def read_page(path: Path) -> str:
        if path not in texts:
            texts[path] = path.read_text(encoding="utf-8", errors="replace")
        return texts[path]

    broken_links = []
    for page in pages:
        path = Path(root) / page
        for line, target in find_links(read_page(path)):
            if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", target):
                continue
            file, _, anchor = unquote(target).partition("#")
            target_path = (path.parent / file).resolve() if file else path
            if not target_path.exists():
                broken_links.append({"page": page, "line": line, "target": target, "fault": "no such file"})
            elif (
                anchor
                and target_path.suffix == ".md"
                and anchor.lower() not in list_anchors(read_page(target_path))
            ):
                broken_links.append(
                    {"page": page, "line": line, "target": target, "fault": "no such heading"}
                )
    return {"broken_links": broken_links}


def find_stale_commands(root: str, pages: list[str]) -> dict[str, Any]:
    """Return commands in shell blocks that use a missing make target or script."""
    commands = []
    for page in pages:
        path = Path(root) / page
        for line in split_lines(path.read_text(encoding="utf-8", errors="replace")):
            if line.language in _SHELLS:
                fault = _find_fault(line.text, path.parent, Path(root))
                if fault:
                    commands.append(
                        {"page": page, "line": line.number, "command": line.text.strip(), "fault": fault}
                    )
    return {"stale_commands": commands}


def judge_findings(broken_links: list[Any], stale_commands: list[Any], data_dir: Path) -> str:
    """Store the findings for the tools; return ``report`` if there are any, else ``clean``."""
    findings = {"broken_links": broken_links, "stale_commands": stale_commands}
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "findings.json").write_text(json.dumps(findings, indent=1), encoding="utf-8")
    return "report" if broken_links or stale_commands else "clean"


def write_clean_report(pages: list[str], data_dir: Path) -> dict[str, Any]:
    """Write a report without findings."""
    text = f"# Documentation\n\n{len(pages)} pages: no broken link and no stale command.\n"
    (data_dir / "report.md").write_text(text, encoding="utf-8")
    return {"report": "report.md"}


def _find_fault(command: str, page_folder: Path, root: Path) -> str:
    try:
        words = shlex.split(command.strip().removeprefix("$ "), comments=True)
    except ValueError:
        return ""
    if not words:
        return ""
    if words[0] == "make":
        targets = _list_make_targets(page_folder, root)
        for word in words[1:]:
            if targets is not None and not word.startswith("-") and "=" not in word and word not in targets:
                return f"the Makefile has no target {word!r}"
    script = words[0] if words[0].startswith("./") else ""
    if words[0] in ("python", "python3", "bash", "sh") and len(words) > 1 and not words[1].startswith("-"):
        script = words[1]
    if script and not any((folder / script).exists() for folder in (page_folder, root)):
        return f"the script {script} does not exist"
    return ""


def _list_make_targets(page_folder: Path, root: Path) -> set[str] | None:
    for folder in (page_folder, *page_folder.parents):
        makefile = folder / "Makefile"
        if makefile.is_file():
            text = makefile.read_text(encoding="utf-8", errors="replace")
            return {word for names in _MAKE_TARGET.findall(text) for word in names.split()}
        if folder == root:
            break
    return None
