"""Render rules as readable YAML: expressions are folded, and a comment above each rule says why it exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any, Final

from queenright.alerting.rules.rule import Alert, Group, RecordingRule

_WIDTH: Final = 110


def render(groups: Iterable[Group], introduction: Sequence[str] = ()) -> str:
    """Render a rule file. Each item of ``introduction`` becomes a comment at its top."""
    lines = [line for paragraph in introduction for line in _render_comment(paragraph, 0)]
    lines.append("groups:")
    for group in groups:
        if lines[-1] != "groups:":
            lines.append("")
        lines.append(f"  - name: {group.name}")
        if group.interval:
            lines.append(f"    interval: {group.interval}")
        lines.append("    rules:")
        for number, rule in enumerate(group.rules):
            if number and (isinstance(rule, Alert) or rule.why):
                lines.append("")
            lines += _render_rule(rule, group)
    return "\n".join(lines) + "\n"


def _render_rule(rule: RecordingRule | Alert, group: Group) -> Iterator[str]:
    fields = rule.to_dict(group.links)
    if isinstance(rule, RecordingRule):
        yield from _render_comment(rule.why, 6)
        yield f"      - record: {rule.name}"
    else:
        yield from _render_comment(f"{_capitalize(rule.threshold)}: {rule.reason}.", 6)
        yield f"      - alert: {rule.name}"
        yield from _render_comment(rule.why, 8)
    yield "        expr: >-"
    yield from (f"          {line.strip()}" for line in rule.expr.strip().splitlines())
    yield from (f"        {key}: {fields[key]}" for key in ("for", "keep_firing_for") if key in fields)
    for block in ("labels", "annotations"):
        if block in fields:
            yield f"        {block}:"
            yield from (
                f"          {key}: {_render_value(block, value)}" for key, value in fields[block].items()
            )


def _capitalize(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".replace("`", "")


def _render_value(block: str, value: Any) -> str:
    if block == "labels" and str(value).isalpha():
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def _render_comment(text: str, indent: int) -> Iterator[str]:
    margin = f"{' ' * indent}# "
    return (f"{margin}{line}" for line in wrap(text, _WIDTH - len(margin), break_on_hyphens=False))
