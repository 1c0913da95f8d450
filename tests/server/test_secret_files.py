"""Secrets in files that settings name."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

import pytest

from queenright.alerting.settings import AlertingSettings
from queenright.server.ops.secret_files import InvalidSecretError, read_callback_secrets, read_secret
from queenright.server.serving import serving
from queenright.server.webhooks.post import SIGNATURE, TIMESTAMP
from tests.server.conftest import demo_settings, looping
from tests.server.test_orchestrator_webhook import Orchestrator, orchestrator
from tests.waiting import until
from tests.warm import queenright

__all__ = ["orchestrator"]  # this module uses it as a fixture

SETTING = "health_monitoring.intervention.escalation.webhook_secret_file"


def write_secret_file(folder: Path, content: bytes = b"honey\n", mode: int = 0o600) -> Path:
    file = folder / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_white_space_around_a_secret_is_stripped(tmp_path: Path, mode: int) -> None:
    assert read_secret(write_secret_file(tmp_path, mode=mode), setting="x").get_secret_value() == "honey"


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"honey", 0o644, r"is accessible to others \(mode 0644\); run chmod 600"),
        (b"honey", 0o602, "is accessible to others"),
        (b"", 0o600, "is empty"),
        (b" \n", 0o600, "is empty"),
        (b"honey\xff", 0o600, "is not UTF-8 text"),
    ],
)
def test_file_without_a_usable_secret_is_rejected_with_a_reason(
    tmp_path: Path, content: bytes, mode: int, reason: str
) -> None:
    file = write_secret_file(tmp_path, content, mode)

    with pytest.raises(InvalidSecretError, match=reason) as error:
        read_secret(file, setting=SETTING)

    assert str(error.value).startswith(f"{SETTING}: the secret file {file} ")
    assert "honey" not in str(error.value)


def test_empty_secret_setting_is_rejected() -> None:
    settings = AlertingSettings.model_validate({"slack_signing_secret_file": ""})

    with pytest.raises(InvalidSecretError) as error:
        read_callback_secrets(settings)

    assert "alerting.slack_signing_secret_file" in str(error.value)


def test_missing_secret_file_is_rejected_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecretError, match=r"cannot be read \(No such file or directory\)"):
        read_secret(tmp_path / "none", setting=SETTING)
    with pytest.raises(InvalidSecretError, match=r"cannot be read \(Is a directory\)"):
        read_secret(tmp_path, setting=SETTING)


async def test_escalations_are_signed_with_the_secret_in_the_file(
    orchestrator: Orchestrator, tmp_path: Path
) -> None:
    orchestrator.answers = [(200, b'{"decision": "more_time"}')]
    settings = demo_settings(
        tmp_path / "storage",
        orchestrator="webhook",
        webhook_url=orchestrator.url,
        webhook_secret_file=str(write_secret_file(tmp_path)),
    )

    async with serving(settings) as running:
        service = running.service
        await service.ingest(list(looping(service.clock(), times=3)))
        await service.health.escalate_to_orchestrator("looper", "it looks odd", by="ada")
        await until(lambda: not service.interventions.ledger.pending, "the decision is applied")

    [(headers, body)] = orchestrator.requests
    signed_bytes = headers[TIMESTAMP].encode() + b"." + body
    assert headers[SIGNATURE] == "sha256=" + hmac.new(b"honey", signed_bytes, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("command", [["serve", "--storage", "there"], ["config", "check"]], ids=" ".join)
@pytest.mark.parametrize("block", ["intervention.escalation", "recovery"])
def test_missing_secret_file_fails_the_start_and_the_check(
    tmp_path: Path, block: str, command: list[str]
) -> None:
    prefix = "QUEENRIGHT_HEALTH_MONITORING__" + block.upper().replace(".", "__")
    variables = {
        "QUEENRIGHT_HTTP__PORT": "0",
        "QUEENRIGHT_OTLP__PORT": "0",
        f"{prefix}__WEBHOOK_URL": "http://127.0.0.1:9/hook",
        f"{prefix}__WEBHOOK_SECRET_FILE": str(tmp_path / "none"),
        "QUEENRIGHT_HEALTH_MONITORING__INTERVENTION__ESCALATION__ORCHESTRATOR": (
            "webhook" if block == "intervention.escalation" else "queen"
        ),
    }

    result = queenright(*command, cwd=tmp_path, env=dict(os.environ) | variables)

    assert result.returncode == 1
    assert f"queenright: health_monitoring.{block}.webhook_secret_file: the secret file" in result.stderr
    assert "Traceback" not in result.stderr
