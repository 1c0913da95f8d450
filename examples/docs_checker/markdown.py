"""Parse Markdown for links and commands: fences, headings, anchors and link targets, by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*(\w*)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)")
_REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$")
_INLINE_CODE = re.compile(r"(`+).*?\1")


class Line(NamedTuple):
    """One line of a page; ``language`` is that of its fenced block, or None outside of blocks."""

    number: int
    text: str
    language: str | None


def split_lines(text: str) -> Iterator[Line]:
    """Yield the lines of a page, without the fences."""
    fence, language = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        opening = _FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence):
                fence = ""
            else:
                yield Line(number, line, language)
        elif opening:
            fence, language = opening[1], opening[2].lower()
        else:
            yield Line(number, line, None)


def find_links(text: str) -> Iterator[tuple[int, str]]:
    """Yield the targets of a page's links and pictures, with their line numbers."""
    for line in split_lines(text):
        if line.language is None:
            prose = _INLINE_CODE.sub("", line.text)
            targets = _LINK.findall(prose) + _REFERENCE.findall(prose)
            yield from ((line.number, target) for target in targets)


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, formed like GitHub's."""
    counts: dict[str, int] = {}
    anchors = set()
    for line in split_lines(text):
        heading = _HEADING.match(line.text) if line.language is None else None
        if heading:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain))
            anchors.add(f"{slug}-{counts[slug]}" if slug in counts else slug)
            counts[slug] = counts.get(slug, 0) + 1
    return anchors | set(re.findall(r"<a\s+(?:name|id)=[\"']([^\"']+)", text))
