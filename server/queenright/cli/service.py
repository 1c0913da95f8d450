"""Commands that call a running service: the client, groups, and checks of arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from queenright.cli.errors import UsageError
from queenright.cli.options import TokenFile, Url
from queenright.cli.output.text import format_local_time, to_single_line
from queenright.client.address import LOCAL_URL
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration

T = TypeVar("T")

if TYPE_CHECKING:
    from queenright.api.agents import AgentRow
    from queenright.api.interventions import EmergencyStop
    from queenright.api.status import Status, StatusEmergencyStop
    from queenright.client.synchronous import Queenright


def connect(url: str, token_file: Path | None) -> Queenright:
    """
    Return a client of the service, to be used as a context manager.

    Raises:
        UsageError: ``url`` is not a URL, or the token cannot be read.
    """
    from queenright.client.errors import InvalidAddressError
    from queenright.client.synchronous import Queenright

    try:
        return Queenright(url, token_file=token_file)
    except InvalidAddressError as error:
        raise UsageError(str(error)) from error


def list_failed_sessions(status: Status) -> set[tuple[str, str]]:
    """Return name and session of the ended workers that still need attention."""
    return {(agent.agent_id, agent.session_id) for agent in status.agents if agent.ended}


def describe_agent(agent: AgentRow) -> str:
    """Return what an agent waits for, or the reason of its findings; empty if there is neither."""
    if agent.waiting and not agent.ended:
        limit_text = "" if agent.limited_until is None else f" at {format_local_time(agent.limited_until)}"
        return f"{agent.activity}: {agent.question}" if agent.question else agent.activity + limit_text
    return agent.reason if agent.findings else ""


def example(arguments: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Set the example at the end of a command's help."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.example = arguments  # type: ignore[attr-defined]  # read when the command is loaded
        return command

    return decorate


def with_service(command: Callable[..., None]) -> Callable[..., None]:
    """
    Turn ``command(service, ...)`` into a command with the options ``--url`` and ``--token-file``.

    The client is open while the command runs.
    """

    @functools.wraps(command)
    def run(*, url: str = LOCAL_URL, token_file: Path | None = None, **options: Any) -> None:
        with connect(url, token_file) as service:
            command(service, **options)

    _, *parameters = inspect.signature(command).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    _set_signature(
        run,
        command,
        [
            *(parameter.replace(kind=keyword) for parameter in parameters),
            inspect.Parameter("url", keyword, default=LOCAL_URL, annotation=Url),
            inspect.Parameter("token_file", keyword, default=None, annotation=TokenFile),
        ],
    )
    return run


def with_options(kind: Callable[..., T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Turn ``command(options, ...)`` into a command whose options are also the fields of a dataclass.

    Args:
        kind: The dataclass of ``options``.
    """
    fields = inspect.signature(kind, eval_str=True).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(kind(**{name: values.pop(name) for name in fields}), **values)

        _, *parameters = inspect.signature(command).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        _set_signature(
            run, command, [*fields.values(), *(parameter.replace(kind=keyword) for parameter in parameters)]
        )
        return run

    return decorate


def make_listing_group(list_command: Callable[..., None], *, example: str) -> typer.Typer:
    """
    Return a group whose `list` subcommand also runs when no subcommand is named.

    Args:
        list_command: Prints the list.
        example: Arguments of `list` in the example of its help.
    """
    group = typer.Typer()

    def default(context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            list_command(**options)
        else:
            _reject_group_options(context)

    parameters = inspect.signature(list_command).parameters.values()
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    _set_signature(default, list_command, [context, *parameters])
    default.__doc__ = list_command.__doc__
    group.callback(invoke_without_command=True)(default)
    group.command("list", epilog=f"Example: queenright {example}")(list_command)
    return group


def _set_signature(
    function: Callable[..., None], source: Callable[..., None], parameters: list[inspect.Parameter]
) -> None:
    """Set the parameters that Typer reads, with the annotations of ``source`` evaluated."""
    namespace = getattr(inspect.unwrap(source), "__globals__", {})
    typed_parameters = [
        parameter.replace(annotation=eval(parameter.annotation, namespace))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in parameters
    ]
    function.__signature__ = inspect.Signature(typed_parameters)  # type: ignore[attr-defined]  # what Typer reads
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in typed_parameters}
    # Otherwise `inspect` and `typing` read the annotations of the wrapped function.
    function.__dict__.pop("__wrapped__", None)


def _reject_group_options(context: typer.Context) -> None:
    # An option before the subcommand, such as --url, would be ignored and the default service used.
    sources = (context.get_parameter_source(name) for name in context.params)
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        raise typer.BadParameter(f"put options after `{context.invoked_subcommand}`")


def require_text(text: str, name: str = "name") -> str:
    """Return a text; reject an empty one, usually an unset variable in a script."""
    if not text.strip():
        raise typer.BadParameter(f"the {name} is empty")
    return text


def warn_about_limits(status: Status) -> bool:
    """Print the limits on the service's actions to stderr; return whether the emergency stop is on."""
    for limit in _describe_limits(status):
        typer.echo(to_single_line(limit), err=True)
    return status.acting.emergency_stop.on


def _describe_limits(status: Status) -> Iterator[str]:
    acting = status.acting
    if acting.emergency_stop.on:
        yield describe_emergency_stop(acting.emergency_stop)
    if acting.storm.since is not None:
        since, workers = format_local_time(acting.storm.since), format_count(acting.storm.workers, "worker")
        yield f"A storm since {since}: {workers} got worse at the same time."
    if (wait := acting.budget.free_at - status.at) > 0:
        yield (
            f"Limit of {acting.budget.most} interventions per minute reached; "
            f"the next in {format_duration(wait)}."
        )
    yield from acting.notices


def describe_emergency_stop(stop: EmergencyStop | StatusEmergencyStop) -> str:
    """Return whether the emergency stop is on, since when, by whom and why."""
    if not stop.on:
        return "The emergency stop is off."
    since = f" since {format_local_time(stop.changed_at)}" if stop.changed_at is not None else ""
    return f"The emergency stop is on{since}, by {stop.by}: {stop.reason}."
