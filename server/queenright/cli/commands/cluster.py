"""`queenright cluster`: the processes that share one database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from queenright.cli.options import Json
from queenright.cli.output.printing import print_list
from queenright.cli.service import with_service
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.client.synchronous import Queenright

cluster = typer.Typer(no_args_is_help=True)

_GONE_SECONDS = 6.0


@cluster.command("status", epilog="Example: queenright cluster status")
@with_service
def status(service: Queenright, as_json: Json = False) -> None:
    """List the processes of the cluster, which ones watch the workers, and what waits to be stored."""
    report = service.service.cluster()
    is_split = len(report.partitions) > 1
    lines = []
    for member in report.members:
        role = "owner" if member.is_owner else "standby"
        own_partitions = [str(part.number) for part in report.partitions if part.owner == member.member_id]
        if is_split and own_partitions:
            role = f"owner of {', '.join(own_partitions)}"
        if member.unseen_seconds > _GONE_SECONDS:
            role = f"not seen for {format_duration(member.unseen_seconds)}"
        lines.append(
            f"{role:<22} {member.url:<36} {member.version:<10} up {format_duration(member.uptime_seconds)}"
        )
    for part in report.partitions:
        if is_split and part.backlog is not None and part.backlog.messages:
            message_count = format_count(part.backlog.messages, "message")
            lines.append(f"partition {part.number}: {message_count} of telemetry to store")
    if report.backlog is not None:
        lines.append(f"{format_count(report.backlog.messages, 'message')} of telemetry to store")
    lines += [f"fault: {fault}" for fault in report.faults]
    print_list([report], lines, "The service is a single process, not a cluster.", as_json=as_json)
