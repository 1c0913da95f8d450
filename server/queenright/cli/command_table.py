"""
Every command of `queenright`: where it is, and one line of help.

`queenright --help` reads only this table. A command's module is imported when the command or its own help
runs, so a command with heavy imports does not slow down the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """
    A command or a group of commands.

    Args:
        name: What the user types.
        target: ``module:attribute`` below ``queenright.cli.commands``: a function or a ``typer.Typer``.
        help: The first sentence of the command's own help.
        section: Heading in ``queenright --help``.
    """

    name: str
    target: str
    help: str
    section: str

    @property
    def module(self) -> str:
        """The module's full name."""
        return f"queenright.cli.commands.{self.target.partition(':')[0]}"

    @property
    def attribute(self) -> str:
        """The command's name in its module."""
        return self.target.partition(":")[2]


_SECTIONS: Final = {
    "Run": {
        "up": "Run everything on this machine: service, Prometheus, Alertmanager and a demo fleet.",
        "serve": "Run the service only; Prometheus and Alertmanager run elsewhere.",
        "run": "Run one agent in the terminal.",
        "shell": "Talk with an agent in the terminal, run after run; /help lists the commands.",
        "code": "Build agents with a coding agent that writes, runs and fixes them here.",
        "agents": "Load agents into the service, run them, and chat with them.",
    },
    "Coding agents": {
        "connect": "Connect a coding agent: add Queenright's telemetry and hooks to its settings.",
        "disconnect": "Disconnect a coding agent: restore its settings as they were before `connect`.",
        "hook": "Pass a hook call of a coding agent to the service, and print the answer.",
    },
    "Observe": {
        "list": "List the agents of a running service: health or outcome, session, task, steps, bad steps.",
        "tui": "Watch the fleet in the terminal, act on workers, and chat with the queen and with agents.",
        "tickets": "Tickets about workers, worst first.",
        "incidents": "List incidents: tickets of several agents with the same cause.",
        "providers": "List model providers and their status, from the fleet's calls of the last ten minutes.",
        "chat": "Chat with the queen about a ticket: the problem, what was tried, what to do next.",
        "events": "Follow events, one per line, until Ctrl-C.",
        "interventions": "List interventions, newest first: done, refused, or logged by a dry run.",
        "recoveries": "List recoveries, newest first.",
        "telemetry": "Show the telemetry sources, which of their records are unused, and what to configure.",
    },
    "Act": {
        "nudge": "Put a message into a worker's context.",
        "terminate": "Stop a worker.",
        "recover": "Recover a task from its last valid checkpoint, within the limits.",
        "approvals": "Requests of the queen to terminate a worker.",
        "permissions": "Permission requests of coding agents.",
        "escalations": "Escalations to the orchestrator, and decisions on them.",
        "breakers": "Circuit breakers of workers' calls.",
        "silences": "Silences at Alertmanager: tickets that send no notifications.",
        "stop-acting": "Set the emergency stop, which freezes all interventions.",
    },
    "Configure and verify": {
        "config": "Check and show the settings.",
        "cluster": "Show the processes of a cluster.",
        "token": "Create, list and revoke access tokens.",
        "store": "Copy the database of a stopped service.",
        "audit": "Verify the event log, and export the audit trail.",
        "rules": "Check, export and compare the Prometheus rules generated from the settings.",
        "dashboards": "Check and export the Grafana dashboards.",
        "judge": "Run the judge without the service, and score it.",
        "evaluate": "Run the deterministic detectors over recorded runs.",
    },
}

_TARGETS: Final = {
    "approvals": "decisions:approvals",
    "escalations": "decisions:escalations",
    "permissions": "decisions:permissions",
    "code": "shell:code",
    "up": "serve:up",
    "disconnect": "connect:disconnect",
    "hook": "connect:hook",
    "list": "fleet:list_",
    "providers": "incidents:providers",
    "recoveries": "interventions:recoveries",
    "nudge": "interventions:nudge",
    "terminate": "interventions:terminate",
    "recover": "interventions:recover",
    "stop-acting": "interventions:stop_acting",
}
"""Targets of commands whose module or attribute does not have the command's name."""

COMMANDS: Final = {
    name: CommandEntry(name, _TARGETS.get(name, f"{name}:{name}"), help_, section)
    for section, commands in _SECTIONS.items()
    for name, help_ in commands.items()
}
"""By name, in the order of ``queenright --help``."""
