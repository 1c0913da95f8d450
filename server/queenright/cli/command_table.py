"""
Every command of `queenright`: where it is, one line of help, one example.

`queenright --help` reads only this table. A command's module is imported when the command or its own help
runs, so a command with heavy imports does not slow down the others.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """
    A command or a group of commands.

    Args:
        name: What the user types.
        target: ``module:attribute`` below ``queenright.cli.commands``: a function or a ``typer.Typer``.
        help: The first sentence of the command's own help.
        example: Valid arguments, shown at the end of the command's help.
        section: Heading in ``queenright --help``.
    """

    name: str
    target: str
    help: str
    example: str
    section: str

    @property
    def module(self) -> str:
        """The module's full name."""
        return f"queenright.cli.commands.{self.target.partition(':')[0]}"

    @property
    def attribute(self) -> str:
        """The command's name in its module."""
        return self.target.partition(":")[2]


_SECTIONS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "Run": (
        (
            "up",
            "serve:up",
            "Run everything on this machine: service, Prometheus, Alertmanager and a demo fleet.",
            "up --otlp-forward http://collector:4318",
        ),
        (
            "serve",
            "serve:serve",
            "Run the service only; Prometheus and Alertmanager run elsewhere.",
            "serve --config /etc/queenright.yaml",
        ),
        (
            "run",
            "run:run",
            "Run one agent in the terminal.",
            'run examples/docs_checker --input \'{"folder": "docs"}\'',
        ),
        (
            "shell",
            "shell:shell",
            "Talk with an agent in the terminal, run after run; /help lists the commands.",
            "shell examples/docs_checker",
        ),
        (
            "code",
            "code:code",
            "Build agents with a coding agent that writes, runs and fixes them here.",
            "code agents --model anthropic/claude-sonnet-4-5",
        ),
        (
            "agents",
            "agents:agents",
            "Load agents into the service, run them, and chat with them.",
            "agents load docs_checker",
        ),
    ),
    "Coding agents": (
        (
            "connect",
            "connect:connect",
            "Connect a coding agent: add Queenright's telemetry and hooks to its settings.",
            "connect claude-code",
        ),
        (
            "disconnect",
            "connect:disconnect",
            "Disconnect a coding agent: restore its settings as they were before `queenright connect`.",
            "disconnect claude-code",
        ),
        (
            "hook",
            "connect:hook",
            "Pass a hook call of a coding agent to the service, and print the answer.",
            "hook codex --otlp-url http://127.0.0.1:4318",
        ),
    ),
    "Observe": (
        (
            "list",
            "fleet:list_",
            "List the agents of a running service: health or outcome, session, task, steps, bad steps.",
            "list --json",
        ),
        (
            "tui",
            "tui:tui",
            "Watch the fleet in the terminal, act on workers, and chat with the queen and with agents.",
            "tui --url http://127.0.0.1:8420",
        ),
        ("tickets", "tickets:tickets", "Tickets about workers, worst first.", "tickets --json"),
        (
            "incidents",
            "incidents:incidents",
            "List incidents: tickets of several agents with the same cause.",
            "incidents --all",
        ),
        (
            "providers",
            "incidents:providers",
            "List model providers and their status, from the fleet's own calls of the last ten minutes.",
            "providers --json",
        ),
        (
            "chat",
            "chat:chat",
            "Chat with the queen about a ticket: the problem, what was tried, what to do next.",
            'chat 01J... --say "what was tried?"',
        ),
        (
            "events",
            "events:events",
            "Follow events, one per line, until Ctrl-C.",
            "events --agent researcher --types all",
        ),
        (
            "interventions",
            "interventions:interventions",
            "List interventions, newest first: done, refused, or logged by a dry run.",
            "interventions --agent researcher",
        ),
        ("recoveries", "interventions:recoveries", "List recoveries, newest first.", "recoveries --json"),
        (
            "telemetry",
            "telemetry:telemetry",
            "Show the telemetry sources, which of their records are unused, and what to configure.",
            "telemetry --json",
        ),
    ),
    "Act": (
        (
            "nudge",
            "interventions:nudge",
            "Put a message into a worker's context.",
            'nudge researcher --message "Write down what blocks you."',
        ),
        (
            "terminate",
            "interventions:terminate",
            "Stop a worker.",
            'terminate researcher --reason "it deletes files"',
        ),
        (
            "recover",
            "interventions:recover",
            "Recover a task from its last valid checkpoint, within the limits.",
            "recover session_20260124_researcher",
        ),
        (
            "approvals",
            "approvals:approvals",
            "Requests of the queen to terminate a worker.",
            "approvals --json",
        ),
        (
            "permissions",
            "permissions:permissions",
            "Permission requests of coding agents.",
            "permissions --json",
        ),
        (
            "escalations",
            "escalations:escalations",
            "Escalations to the orchestrator, and decisions on them.",
            "escalations --json",
        ),
        ("breakers", "breakers:breakers", "Circuit breakers of workers' calls.", "breakers --json"),
        (
            "silences",
            "silences:silences",
            "Silences at Alertmanager: tickets that send no notifications.",
            "silences --json",
        ),
        (
            "stop-acting",
            "interventions:stop_acting",
            "Set the emergency stop, which freezes all interventions.",
            'stop-acting on --reason "provider is down"',
        ),
    ),
    "Configure and verify": (
        (
            "config",
            "config:config",
            "Check and show the settings.",
            "config check --config queenright.yaml",
        ),
        ("cluster", "cluster:cluster", "Show the processes of a cluster.", "cluster status"),
        (
            "token",
            "token:token",
            "Create, list and revoke access tokens.",
            "token create ada --role operator --expires 90d",
        ),
        (
            "store",
            "store:store",
            "Copy the database of a stopped service.",
            "store copy sqlite:///.queenright/queenright.db postgresql://queenright@db.example/queenright",
        ),
        (
            "audit",
            "audit:audit",
            "Verify the event log, and export the audit trail.",
            "audit verify --storage .queenright",
        ),
        (
            "rules",
            "rules:rules",
            "Check, export and compare the Prometheus rules that the settings give.",
            "rules check --config queenright.yaml",
        ),
        (
            "dashboards",
            "dashboards:dashboards",
            "Check and export the Grafana dashboards.",
            "dashboards export -o /var/lib/grafana/dashboards",
        ),
        (
            "judge",
            "judge:judge",
            "Run the judge without the service, and score it.",
            "judge once --prometheus http://prometheus:9090 --state s",
        ),
        (
            "evaluate",
            "evaluate:evaluate",
            "Run the deterministic detectors over recorded runs.",
            "evaluate runs.jsonl.gz --json",
        ),
    ),
}

COMMANDS: dict[str, CommandEntry] = {
    name: CommandEntry(name, target, help_, example, section)
    for section, rows in _SECTIONS.items()
    for name, target, help_, example in rows
}
"""By name, in the order of ``queenright --help``."""
