"""Dump readable YAML: multi-line strings as blocks, no aliases, keys in insertion order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import yaml
from yaml.emitter import ScalarAnalysis

_PLAIN_LINES: Final = re.compile(
    r"(?![ \n])(?:[ -~\u00a1-\u2027\u202a-\ud7ff]*\n)+[ -~\u00a1-\u2027\u202a-\ud7ff]*"
)
"""Lines that a YAML block can contain unchanged, unless a line ends with a space."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def analyze_scalar(self, scalar: str) -> ScalarAnalysis:
        # PyYAML checks each character in Python, and a dashboard has hundreds of thousands of characters.
        if _PLAIN_LINES.fullmatch(scalar) and " \n" not in scalar and not scalar.endswith(" "):
            return ScalarAnalysis(scalar, False, True, False, False, True, True, True)
        return super().analyze_scalar(scalar)

    def write_literal(self, text: str) -> None:
        if not _PLAIN_LINES.fullmatch(text):
            super().write_literal(text)
            return
        hints = self.determine_block_hints(text)
        self.write_indicator(f"|{hints}", True)
        self.open_ended = hints == "+"
        self.write_line_break()
        for line in text.removesuffix("\n").split("\n"):
            if line:
                self.write_indent()
                self.stream.write(line)
            self.write_line_break()


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def yaml_text(*documents: Any, comments: Iterable[str] = ()) -> str:
    """Dump documents as YAML, preceded by the comments, each on one line."""
    head = "".join(f"# {line}\n" if line else "#\n" for line in comments)
    return head + yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True, explicit_start=False
    )
