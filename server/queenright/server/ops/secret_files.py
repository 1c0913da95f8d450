"""Read secrets from files that settings name."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from queenright.alerting.settings import AlertingSettings
from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.judge.settings import JudgeSettings

_ACCESS_BY_OTHERS: Final = stat.S_IRWXO


class InvalidSecretError(QueenrightError):
    """Raised when a secret file cannot be used. The message never includes its content."""


def read_orchestrator_secret(settings: HealthSettings) -> SecretStr | None:
    """
    Return the signing secret for escalations; None without a secret or a webhook.

    Raises:
        InvalidSecretError: See ``read_secret``.
    """
    escalation = settings.intervention.escalation
    is_used = escalation.orchestrator == "webhook" and escalation.webhook_url is not None
    return _read_webhook_secret(
        escalation.webhook_secret_file if is_used else None, "intervention.escalation"
    )


def read_respawner_secret(settings: HealthSettings) -> SecretStr | None:
    """
    Return the signing secret for respawn requests; None without a secret or a webhook.

    Raises:
        InvalidSecretError: See ``read_secret``.
    """
    recovery = settings.recovery
    is_used = recovery.webhook_url is not None
    return _read_webhook_secret(recovery.webhook_secret_file if is_used else None, "recovery")


def read_stack_tokens(settings: JudgeSettings) -> tuple[SecretStr | None, SecretStr | None]:
    """
    Return the bearer tokens for the user's Prometheus and Tempo; None if it has no token or no URL.

    Raises:
        InvalidSecretError: See ``read_secret``.
    """
    tokens: list[SecretStr | None] = []
    for url, file, setting in (
        (settings.prometheus_url, settings.prometheus_token_file, "judging.prometheus_token_file"),
        (settings.tempo_url, settings.tempo_token_file, "judging.tempo_token_file"),
    ):
        if url is None or file is None:
            tokens.append(None)
        else:
            tokens.append(read_secret(file, setting=setting))
    return tokens[0], tokens[1]


def read_callback_secrets(settings: AlertingSettings) -> tuple[SecretStr | None, tuple[SecretStr, ...]]:
    """
    Return the secrets for Slack's clicks and PagerDuty's webhooks; None and () if they are not configured.

    Raises:
        InvalidSecretError: See ``read_secret``.
    """
    file = settings.slack_signing_secret_file
    slack = None if file is None else read_secret(file, setting="alerting.slack_signing_secret_file")
    label = "alerting.pagerduty_webhook_secret_files"
    return slack, tuple(read_secret(path, setting=label) for path in settings.pagerduty_webhook_secret_files)


def _read_webhook_secret(file: Path | None, block: str) -> SecretStr | None:
    setting = f"health_monitoring.{block}.webhook_secret_file"
    return None if file is None else read_secret(file, setting=setting)


def read_secret(file: Path, *, setting: str) -> SecretStr:
    """
    Return the content of a secret file, stripped.

    Args:
        file: The file. Only its owner and group may have access.
        setting: The setting that names it, for error messages.

    Raises:
        InvalidSecretError: The file cannot be read, is accessible to others, or is empty.
    """
    if file == Path():  # an empty setting
        raise InvalidSecretError(f"{setting} is empty; set it to the secret's file, or remove it")
    label = f"{setting}: the secret file {file}"
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            content = stream.read()
    except OSError as error:
        raise InvalidSecretError(
            f"{label} cannot be read ({error.strerror}); create it, readable only by the service's user"
        ) from None
    if mode & _ACCESS_BY_OTHERS:
        raise InvalidSecretError(f"{label} is accessible to others (mode {mode:04o}); run chmod 600")
    try:
        secret = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise InvalidSecretError(f"{label} is not UTF-8 text; write the secret on one line") from None
    if not secret:
        raise InvalidSecretError(f"{label} is empty; write the secret on one line")
    return SecretStr(secret)
