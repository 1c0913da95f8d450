"""`queenright up` and `queenright serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import (
    PORT,
    Config,
    Forward,
    OtlpPort,
    PortOption,
    Storage,
    collect_settings_overrides,
)
from queenright.cli.service import example


@example("up --otlp-forward http://collector:4318")
def up(
    config: Config = None,
    storage: Storage = None,
    port: PortOption = None,
    otlp_port: OtlpPort = None,
    otlp_forward: Forward = None,
    demo: Annotated[bool, typer.Option(help="Run a small fleet of demo agents.")] = True,
    model: Annotated[
        str | None, typer.Option(help="litellm model for the demo agents. Default: a scripted model.")
    ] = None,
    files: Annotated[
        Path,
        typer.Option(help="Folder of text files for the demo agents.", exists=True, file_okay=False),
    ] = Path(),
    prometheus_port: Annotated[int, typer.Option(**PORT, help="Port of Prometheus.")] = 9090,
    alertmanager_port: Annotated[int, typer.Option(**PORT, help="Port of Alertmanager.")] = 9093,
    receiver_port: Annotated[
        int, typer.Option(**PORT, help="Port of the Slack and PagerDuty stand-in.")
    ] = 8421,
    slack_url_file: Annotated[Path | None, typer.Option(help="File with a real Slack webhook URL.")] = None,
    pagerduty_key_file: Annotated[
        Path | None, typer.Option(help="File with a real PagerDuty routing key.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that the required programs are installed.")
    ] = False,
) -> None:
    """Run everything on this machine: service, Prometheus, Alertmanager and a demo fleet."""
    from queenright.cli.jobs.service import check_up, run_up
    from queenright.server.settings import load_settings
    from queenright.server.up_options import UP_DEFAULTS, UpOptions, get_example_roots

    settings = load_settings(
        config,
        defaults=(UP_DEFAULTS if demo else {}) | get_example_roots(),
        **collect_settings_overrides(storage, port, otlp_port, otlp_forward),
    )
    if check:
        raise typer.Exit(check_up())
    if model is not None:
        from queenright.runtime.llm.litellm_provider import LiteLlmProvider, load_provider

        # Refuse an unusable model before anything starts.
        provider = load_provider(model)
        if isinstance(provider, LiteLlmProvider):
            provider.check()
    options = UpOptions(
        demo=demo,
        model=model,
        fast=demo,
        files=files,
        prometheus_port=prometheus_port,
        alertmanager_port=alertmanager_port,
        receiver_port=receiver_port,
        slack_url_file=slack_url_file,
        pagerduty_key_file=pagerduty_key_file,
    )
    raise typer.Exit(run_up(settings, options))


@example("serve --config /etc/queenright.yaml")
def serve(
    config: Config = None,
    storage: Storage = None,
    port: PortOption = None,
    otlp_port: OtlpPort = None,
    otlp_forward: Forward = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NATS",
            help="Run as one process of a cluster, with these NATS servers.",
        ),
    ] = None,
) -> None:
    """Run the service only; Prometheus and Alertmanager run elsewhere."""
    from queenright.cli.jobs.service import run_serve
    from queenright.server.settings import load_settings

    overrides = collect_settings_overrides(storage, port, otlp_port, otlp_forward, host, cluster)
    raise typer.Exit(run_serve(load_settings(config, **overrides)))
