"""Dump readable YAML: multi-line strings as blocks, no references, keys in insertion order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def yaml_text(*documents: Any, comments: Iterable[str] = ()) -> str:
    """Dump documents as YAML, after one line per comment."""
    head = "".join(f"# {line}\n" if line else "#\n" for line in comments)
    return head + yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True, explicit_start=False
    )
