"""Check the files that settings name before the service starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from queenright.judge.models import check_judging
from queenright.judge.settings import RULES
from queenright.runtime.llm.litellm_provider import SCRIPTED, LiteLlmProvider, ProviderUnavailableError
from queenright.server.access.access import Access, get_tokens_path
from queenright.server.access.addresses import resolve_listen_address
from queenright.server.access.token_file import read_tokens
from queenright.server.access.tokens import InvalidTokensError
from queenright.server.agents.roots import PathNotAllowedError, Roots
from queenright.server.ops.secret_files import (
    read_callback_secrets,
    read_orchestrator_secret,
    read_respawner_secret,
    read_stack_tokens,
)
from queenright.server.settings import InvalidSettingsError, Settings

_TLS_FILES: Final = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})
"""The parameters of a PostgreSQL URL that name files."""


def check_files(settings: Settings) -> None:
    """
    Check every file that a setting names, without creating any.

    Raises:
        InvalidSecretError: A secret file is not usable.
        ModelUnavailableError: A configured model is not available.
        InvalidPromptError: A prompt file is not valid.
    """
    read_orchestrator_secret(settings.health_monitoring)
    read_respawner_secret(settings.health_monitoring)
    read_stack_tokens(settings.judging)
    read_callback_secrets(settings.alerting)
    check_judging(settings.health_monitoring, settings.judging)


def check_usability(settings: Settings) -> None:
    """
    Check settings that would fail only later: storage, tokens, agents, step logs and model names.

    Raises:
        InvalidSettingsError: A setting cannot be used. The message has a line for each such setting.
    """
    faults = _check_folder("storage", settings.storage) or _check_tokens(settings)
    faults += _check_tls_files(settings.database_url)
    roots = Roots(settings.agents.roots)
    for path in settings.agents.load:
        try:
            roots.find_agent(str(path))
        except PathNotAllowedError as error:
            faults.append(f"agents.load: {error}")
    if settings.agents.storage is not None:
        faults += _check_folder("agents.storage", settings.agents.storage)
    if "roots" in settings.agents.model_fields_set:
        faults += _check_folders_exist("agents.roots", settings.agents.roots)
    faults += _check_folders_exist("step_logs", settings.step_logs)
    for role, model in (("judge", settings.judging.judge.model), ("queen", settings.judging.queen.model)):
        try:
            if model != RULES and not model.startswith(SCRIPTED):
                LiteLlmProvider(model).check()
        except ProviderUnavailableError as error:
            faults.append(f"judging.{role}.model: {error}")
    if faults:
        raise InvalidSettingsError("\n".join(("Settings refused:", *(f"  {fault}." for fault in faults))))


def _check_tokens(settings: Settings) -> list[str]:
    file = settings.auth.tokens_file
    if file is not None and not file.exists():
        remedy = f"create it with `queenright token create NAME --tokens-file {file}`, or remove the setting"
        return [f"auth.tokens_file: there is no file {file}; {remedy}"]
    try:
        read_tokens(get_tokens_path(settings))
        hosts = settings.http.host, settings.otlp.host
        Access(settings).require_live_token(*map(resolve_listen_address, hosts))
    except InvalidTokensError as error:
        return [f"auth.tokens_file: {error}"]
    return []


def _check_tls_files(url: str) -> list[str]:
    """Return faults of the TLS files in a database URL."""
    from queenright.health.store.engines import parse_address

    return [
        f"database: there is no file {file} for {name}; correct its path in the address"
        for name, files in parse_address(url).normalized_query.items()
        if name in _TLS_FILES
        for file in files
        if file != "system" and not Path(file).is_file()
    ]


def _check_folders_exist(setting: str, folders: Iterable[Path]) -> list[str]:
    return [
        f"{setting}: {folder} is not a folder; create it, or remove it from the list"
        for folder in folders
        if not folder.is_dir()
    ]


def _check_folder(setting: str, folder: Path) -> list[str]:
    existing_path = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not existing_path.is_dir():
        return [
            f"{setting}: {existing_path} is not a folder; set it to a folder that exists or can be created"
        ]
    if not os.access(existing_path, os.W_OK | os.X_OK):
        return [f"{setting}: {existing_path} cannot be written by this user; set it to another folder"]
    return []
