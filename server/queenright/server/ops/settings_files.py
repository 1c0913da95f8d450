"""Check the files that settings name before the service starts."""

from __future__ import annotations

import os

from queenright.judge.models import check_judging
from queenright.judge.settings import RULES
from queenright.runtime.llm.litellm_provider import SCRIPTED, LiteLlmProvider, ProviderUnavailableError
from queenright.server.access.access import Access, tokens_file
from queenright.server.access.addresses import address_of
from queenright.server.access.token_file import read_tokens
from queenright.server.access.tokens import InvalidTokensError
from queenright.server.agents.roots import PathNotAllowedError, Roots
from queenright.server.ops.secret_files import (
    callback_secrets,
    orchestrators_secret,
    respawners_secret,
    stack_tokens,
)
from queenright.server.settings import InvalidSettingsError, Settings


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


def check_use(settings: Settings) -> None:
    """
    Check what a running service would report later: storage, tokens, agents, step logs and model names.

    Raises:
        InvalidSettingsError: One of them cannot be used; has a line for each.
    """
    faults = _storage_faults(settings)
    if not faults:
        try:
            read_tokens(tokens_file(settings))
            Access(settings).require_live_token(*map(address_of, (settings.http.host, settings.otlp.host)))
        except InvalidTokensError as error:
            faults.append(f"auth.tokens_file: {error}")
    roots = Roots(settings.agents.roots)
    for path in settings.agents.load:
        try:
            roots.agent(str(path))
        except PathNotAllowedError as error:
            faults.append(f"agents.load: {error}")
    faults += [
        f"step_logs: {folder} is not a folder; create it, or remove it from the list"
        for folder in settings.step_logs
        if not folder.is_dir()
    ]
    for role, model in (("judge", settings.judging.judge.model), ("queen", settings.judging.queen.model)):
        try:
            if model != RULES and not model.startswith(SCRIPTED):
                LiteLlmProvider(model).check()
        except ProviderUnavailableError as error:
            faults.append(f"judging.{role}.model: {error}")
    if faults:
        raise InvalidSettingsError("\n".join(("Settings refused:", *(f"  {fault}." for fault in faults))))


def _storage_faults(settings: Settings) -> list[str]:
    storage = settings.storage
    there = next((path for path in (storage, *storage.parents) if path.exists()), storage)
    if not there.is_dir():
        return [f"storage: {there} is not a folder; name a folder, or one that can be created"]
    if not os.access(there, os.W_OK | os.X_OK):
        return [f"storage: {there} cannot be written by this user; name another folder"]
    return []
