"""Validation of single nodes and entry points. Each problem is one sentence that names its place."""

from __future__ import annotations

import functools
import importlib
import zoneinfo
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from queenright.instrumentation.extras import get_install_command
from queenright.runtime.graphs.specs import EntryPointSpec, NodeSpec
from queenright.runtime.timers import load_timezone


def find_duplicates(kind: str, ids: Iterable[str]) -> Iterator[str]:
    """Yield a problem for each duplicate id."""
    for name, count in Counter(ids).items():
        if count > 1:
            yield f"{kind} {name!r} is defined twice"


def find_node_problems(node: NodeSpec) -> Iterator[str]:
    """Yield the problems of ``node``, independent of its graph."""
    prefix = f"node {node.id!r}"
    yield from (f"{prefix}: {problem}" for problem in _find_type_problems(node))
    for kind, names in (
        ("tool", node.tools),
        ("input key", node.input_keys),
        ("output key", node.output_keys),
    ):
        yield from (f"{prefix}: {problem}" for problem in find_duplicates(kind, names))
    for key in node.nullable_output_keys:
        if key not in node.output_keys:
            yield f"{prefix}: nullable output key {key!r} is not in output_keys"
    for name in node.final_tools:
        if name not in node.tools:
            yield f"{prefix}: final tool {name!r} is not in tools"
    if node.conversation_judge == "llm" and not node.success_criteria:
        yield f"{prefix}: conversation_judge 'llm' requires success_criteria"


def _find_type_problems(node: NodeSpec) -> Iterator[str]:
    kind = node.node_type
    if kind == "function" and not node.function:
        yield "a function node needs a function"
    if kind == "event_loop" and not node.system_prompt:
        yield "an event_loop node needs a system_prompt"
    if kind == "event_loop" and node.function:
        yield "function applies to function and router nodes, not event_loop"
    if kind == "router":
        if bool(node.function) == bool(node.system_prompt):
            yield "a router needs either a system_prompt or a function, not both"
        if not node.routes:
            yield "a router needs routes"
    elif node.routes:
        yield f"routes applies to routers, not {kind}"
    if node.function and kind != "event_loop":
        model_only = {
            "tools": node.tools,
            "system_prompt": node.system_prompt if kind == "function" else "",
            "model": node.model,
            "conversation_judge": node.conversation_judge,
        }
        for name, value in model_only.items():
            if value:
                yield f"{name} applies to nodes with a model, but this one calls function {node.function!r}"
    if node.client_facing and kind != "event_loop":
        yield f"client_facing applies to event_loop nodes, not {kind}"


def find_entry_point_problems(entry: EntryPointSpec) -> Iterator[str]:
    """Yield the problems of ``entry``, independent of its graph."""
    prefix = f"entry point {entry.id!r}"
    yield from (f"{prefix}: {problem}" for problem in _find_timer_problems(entry))
    yield from (f"{prefix}: {problem}" for problem in _find_event_problems(entry))
    if entry.max_concurrent > 1 and entry.isolation_level != "per_run":
        yield (
            f"{prefix}: max_concurrent {entry.max_concurrent} requires isolation_level per_run; "
            f"{entry.isolation_level} runs share a session, which has one writer"
        )


def _find_timer_problems(entry: EntryPointSpec) -> Iterator[str]:
    interval, cron = entry.interval_seconds is not None, bool(entry.cron)
    if entry.trigger_type != "timer":
        for name, is_set in (("interval_seconds", interval), ("cron", cron)):
            if is_set:
                yield f"{name} applies to timers, not {entry.trigger_type}"
    elif interval and cron:
        yield "a timer takes either interval_seconds or cron, not both"
    elif not interval and not cron:
        yield "a timer needs interval_seconds or cron"
    if (problem := _find_timezone_problem(entry.timezone)) is not None:
        yield problem
    elif not cron and entry.timezone != "UTC":
        yield "timezone applies to cron only"
    if cron and (problem := find_cron_problem(entry.cron)) is not None:
        yield problem


def _find_event_problems(entry: EntryPointSpec) -> Iterator[str]:
    if entry.trigger_type == "event":
        if not entry.event_types:
            yield "an event trigger needs event_types"
        return
    fields = ("event_types", "filter_graph", "filter_stream", "filter_node", "filter_agent")
    for name in fields:
        if getattr(entry, name):
            yield f"{name} applies to event triggers, not {entry.trigger_type}"


def _find_timezone_problem(name: str) -> str | None:
    try:
        load_timezone(name)
    except (KeyError, ValueError, OSError):
        if zoneinfo.available_timezones():
            return f"unknown timezone {name!r}; use a name such as 'UTC' or 'Europe/Vienna'"
        return f"timezone {name!r} needs a time zone database; install the package tzdata, or use 'UTC'"
    return None


@functools.lru_cache(maxsize=256)
def find_cron_problem(cron: str) -> str | None:
    """Return the problem with a cron expression of five fields, or None."""
    fields = len(cron.split())
    if fields != 5:
        return f"cron {cron!r} has {fields} fields; it needs minute, hour, day of month, month, day of week"
    try:
        cronsim = importlib.import_module("cronsim")
    except ImportError:
        return f"cron needs the extra 'runtime'. Run: {get_install_command('runtime')}"
    try:
        # A fixed start, so that the result does not depend on the current date.
        next(cronsim.CronSim(cron, datetime(2024, 1, 1, tzinfo=UTC)))
    except cronsim.CronSimError as error:
        return f"cron {cron!r}: {error}"
    except StopIteration:
        return f"cron {cron!r}: no such date exists"
    return None
