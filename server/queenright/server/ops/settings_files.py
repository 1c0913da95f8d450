"""Files that settings name: whether each can be used, before anything is begun."""

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
    Look at every file that a setting names; nothing is made.

    Raises:
        InvalidSecretError: One does not hold the secret it should.
        ModelUnavailableError: A model is set that cannot be used here.
        InvalidPromptError: One is no prompt.
    """
    orchestrators_secret(settings.health_monitoring)
    respawners_secret(settings.health_monitoring)
    stack_tokens(settings.judging)
    callback_secrets(settings.alerting)
    check_judging(settings.health_monitoring, settings.judging)
