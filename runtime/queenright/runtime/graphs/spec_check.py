"""What can be wrong with a node or an entry point by itself. Each problem is one sentence that names it."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from queenright.runtime.graphs.specs import EntryPointSpec, NodeSpec


def twice(what: str, ids: Iterable[str]) -> Iterator[str]:
    """Yield a problem for each id that is there more than once."""
    for name, count in Counter(ids).items():
        if count > 1:
            yield f"{what} {name!r} is there twice"


def node_problems(node: NodeSpec) -> Iterator[str]:
    """Yield what is wrong with ``node``, whatever graph it is in."""
    it = f"node {node.id!r}"
    yield from (f"{it}: {problem}" for problem in _type_problems(node))
    for what, names in (
        ("tool", node.tools),
        ("input key", node.input_keys),
        ("output key", node.output_keys),
    ):
        yield from (f"{it}: {problem}" for problem in twice(what, names))
    for key in node.nullable_output_keys:
        if key not in node.output_keys:
            yield f"{it}: nullable output key {key!r} is none of its output_keys"
    for name in node.final_tools:
        if name not in node.tools:
            yield f"{it}: final tool {name!r} is none of its tools"
    if node.conversation_judge == "llm" and not node.success_criteria:
        yield f"{it}: conversation_judge 'llm' needs success_criteria to judge by"


def _type_problems(node: NodeSpec) -> Iterator[str]:
    kind = node.node_type
    if kind == "function" and not node.function:
        yield "a function node needs a function"
    if kind == "event_loop" and not node.system_prompt:
        yield "an event_loop node needs a system_prompt"
    if kind == "event_loop" and node.function:
        yield "function is for function and router nodes, not event_loop"
    if kind == "router":
        if bool(node.function) == bool(node.system_prompt):
            yield "a router needs either a system_prompt or a function, and not both"
        if not node.routes:
            yield "a router needs routes"
    elif node.routes:
        yield f"routes is for routers, not {kind}"
    if node.function and kind != "event_loop":
        # What only a model could make use of.
        meant_for_models = {
            "tools": node.tools,
            "system_prompt": node.system_prompt if kind == "function" else "",
            "model": node.model,
            "conversation_judge": node.conversation_judge,
        }
        for name, value in meant_for_models.items():
            if value:
                yield f"{name} is for nodes with a model, and this one calls function {node.function!r}"
    if node.client_facing and kind != "event_loop":
        yield f"client_facing is for event_loop nodes, not {kind}"


def entry_point_problems(entry: EntryPointSpec) -> Iterator[str]:
    """Yield what is wrong with ``entry``, whatever graph it is in."""
    it = f"entry point {entry.id!r}"
    yield from (f"{it}: {problem}" for problem in _timer_problems(entry))
    yield from (f"{it}: {problem}" for problem in _event_problems(entry))
    if entry.max_concurrent > 1 and entry.isolation_level != "per_run":
        yield (
            f"{it}: max_concurrent {entry.max_concurrent} needs isolation_level per_run; "
            f"{entry.isolation_level} runs share a session, and a session has one writer"
        )


def _timer_problems(entry: EntryPointSpec) -> Iterator[str]:
    interval, cron = entry.interval_seconds is not None, bool(entry.cron)
    if entry.trigger_type != "timer":
        for name, is_set in (("interval_seconds", interval), ("cron", cron)):
            if is_set:
                yield f"{name} is for timers, not {entry.trigger_type}"
    elif interval and cron:
        yield "a timer has interval_seconds or cron, not both"
    elif not interval and not cron:
        yield "a timer needs interval_seconds or cron"
    zone = _zone(entry.timezone)
    if zone is None:
        yield f"there is no timezone {entry.timezone!r}; one is such as 'UTC' or 'Europe/Vienna'"
    elif not cron and entry.timezone != "UTC":
        yield "timezone is for cron"
    if cron and (problem := cron_problem(entry.cron)) is not None:
        yield problem


def _event_problems(entry: EntryPointSpec) -> Iterator[str]:
    if entry.trigger_type == "event":
        if not entry.event_types:
            yield "an event trigger needs event_types"
        return
    fields = ("event_types", "filter_graph", "filter_stream", "filter_node", "filter_agent")
    for name in fields:
        if getattr(entry, name):
            yield f"{name} is for events, not {entry.trigger_type}"


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not known, no name at all, a folder of zones
        return None


@functools.lru_cache(maxsize=256)
def cron_problem(cron: str) -> str | None:
    """Return what is wrong with five fields of cron, or None."""
    fields = len(cron.split())
    if fields != 5:
        return f"cron {cron!r} has {fields} fields; it needs minute, hour, day of month, month, day of week"
    try:
        cronsim = importlib.import_module("cronsim")
    except ImportError:
        return "cron needs cronsim; install it with: pip install 'queenright[runtime]'"
    try:
        # From a fixed day: whether a time ever comes does not depend on when that is asked.
        next(cronsim.CronSim(cron, datetime(2024, 1, 1, tzinfo=UTC)))
    except cronsim.CronSimError as error:
        return f"cron {cron!r}: {error}"
    except StopIteration:
        return f"cron {cron!r}: that time never comes"
    return None
