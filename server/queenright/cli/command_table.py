"""
Every command of `queenright` in one table: where it is, one line of help, one example.

The table is all that `queenright --help` reads: a command's module is imported when it is called, or asked
for help itself. So a command costs nobody else anything, whatever it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

_CLI = "queenright.cli"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One command, or a group of them.

    Args:
        name: What is typed.
        target: ``module:attribute`` below ``queenright.cli``: a function, or a ``typer.Typer``.
        help: The first sentence of the command's own help.
        example: A line that works, without ``queenright``; its help ends with it.
        section: Under which heading ``queenright --help`` lists it.
    """

    name: str
    target: str
    help: str
    example: str
    section: str

    @property
    def module(self) -> str:
        """The module's full name."""
        return f"{_CLI}.{self.target.partition(':')[0]}"

    @property
    def attribute(self) -> str:
        """What the command is called in its module."""
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
            "Run the service alone, with Prometheus and Alertmanager somewhere else.",
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
            "Talk with an agent in the terminal, run after run; /help says what else it obeys.",
            "shell examples/docs_checker",
        ),
        (
            "code",
            "code:code",
            "Build agents with an agent: it writes them, runs them here, and mends them when they fail.",
            "code agents --model anthropic/claude-sonnet-4-5",
        ),
        (
            "agents",
            "agents:agents",
            "Agents that run inside the service: load them, talk with them.",
            "agents load docs_checker",
        ),
    ),
    "Coding agents": (
        (
            "connect",
            "connect:connect",
            "Connect a coding agent: its settings get the telemetry and hooks that Queenright needs.",
            "connect claude-code",
        ),
        (
            "disconnect",
            "connect:disconnect",
            "Disconnect a coding agent: its settings are as they were before `queenright connect`.",
            "disconnect claude-code",
        ),
        (
            "hook",
            "connect:hook",
            "Pass a hook call of a coding agent to the service, and print the answer.",
            "hook codex --otlp-url http://127.0.0.1:4318",
        ),
    ),
    "Look": (
        (
            "list",
            "fleet:list_",
            "List the agents of a running service: state, session, task, steps, bad steps since a good one.",
            "list --json",
        ),
        (
            "tui",
            "tui:tui",
            "Watch the fleet in the terminal, act on workers, and talk with the queen and with agents.",
            "tui --url http://127.0.0.1:8420",
        ),
        (
            "tickets",
            "tickets:tickets",
            "Tickets about workers, worst first, and what is said about them.",
            "tickets --json",
        ),
        (
            "incidents",
            "incidents:incidents",
            "List incidents: tickets of several agents that share a cause.",
            "incidents --all",
        ),
        (
            "providers",
            "incidents:providers",
            "List model providers: how they do, by the fleet's own calls of the last ten minutes.",
            "providers --json",
        ),
        (
            "chat",
            "chat:chat",
            "Talk with the queen about a ticket: what is wrong, what was tried, what to do next.",
            'chat 01J... --say "what was tried?"',
        ),
        (
            "events",
            "events:events",
            "Follow what happens, a line an event; Ctrl-C ends it.",
            "events --agent researcher --types all",
        ),
        (
            "interventions",
            "acting:interventions",
            "List what was done to workers, refused, or would have been done; newest first.",
            "interventions --agent researcher",
        ),
        ("recoveries", "acting:recoveries", "List recoveries, newest first.", "recoveries --json"),
        (
            "telemetry",
            "telemetry:telemetry",
            "Show who sends telemetry, what of it is not used, and what to set.",
            "telemetry --json",
        ),
    ),
    "Act": (
        (
            "nudge",
            "acting:nudge",
            "Put a message into a worker's context.",
            'nudge researcher --message "Write down what blocks you."',
        ),
        (
            "terminate",
            "acting:terminate",
            "Stop a worker: its state is saved, and it is not brought back by itself.",
            'terminate researcher --reason "it deletes files"',
        ),
        (
            "recover",
            "acting:recover",
            "Bring a task back from its last valid checkpoint, within the limits.",
            "recover session_20260124_researcher",
        ),
        (
            "approvals",
            "approvals:approvals",
            "Requests of the queen to stop a worker, and your word on them.",
            "approvals --json",
        ),
        (
            "permissions",
            "permissions:permissions",
            "What coding agents ask permission for, and your answer.",
            "permissions --json",
        ),
        (
            "escalations",
            "escalations:escalations",
            "Questions to the orchestrator, and their answers.",
            "escalations --json",
        ),
        (
            "breakers",
            "breakers:breakers",
            "Circuit breakers of workers' calls.",
            "breakers --json",
        ),
        (
            "silences",
            "silences:silences",
            "Silences at Alertmanager: of which tickets nobody hears, and until when.",
            "silences --json",
        ),
        (
            "stop-acting",
            "acting:stop_acting",
            "The emergency stop: nothing is done to any worker.",
            'stop-acting on --reason "provider is down"',
        ),
    ),
    "Check, and take along": (
        ("config", "config:config", "The settings.", "config check --config queenright.yaml"),
        (
            "token",
            "token:token",
            "Tokens: who may ask a service, and what for.",
            "token create ada --role operator --expires 90d",
        ),
        (
            "audit",
            "audit:audit",
            "The event log, and whether anyone has changed it.",
            "audit verify --storage .queenright",
        ),
        (
            "rules",
            "rules:rules",
            "The rules for Prometheus, made from the settings: check them, take them along, compare them.",
            "rules check --config queenright.yaml",
        ),
        (
            "dashboards",
            "dashboards:dashboards",
            "The dashboards for Grafana: check them, take them along.",
            "dashboards export -o /var/lib/grafana/dashboards",
        ),
        (
            "judge",
            "judge:judge",
            "The judge by itself, beside or without the service.",
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

COMMANDS: dict[str, Entry] = {
    name: Entry(name, target, help_, example, section)
    for section, rows in _SECTIONS.items()
    for name, target, help_, example in rows
}
"""By name, in the order in which they are listed."""
