"""Check the files that settings name before the service starts."""

from __future__ import annotations

from queenright.judge.models import check_judging
from queenright.server.ops.secret_files import (
    callback_secrets,
    orchestrators_secret,
    respawners_secret,
    stack_tokens,
)
from queenright.server.settings import Settings


def check_files(settings: Settings) -> None:
    """
    Check every file that a setting names; nothing is created.

    Raises:
        InvalidSecretError: A secret file is not usable.
        ModelUnavailableError: A configured model is not available.
        InvalidPromptError: A prompt file is not valid.
    """
    orchestrators_secret(settings.health_monitoring)
    respawners_secret(settings.health_monitoring)
    stack_tokens(settings.judging)
    callback_secrets(settings.alerting)
    check_judging(settings.health_monitoring, settings.judging)
