from pathlib import Path

import pytest
import yaml

from queenright.server.ops.secret_files import InvalidSecretError, read_stack_tokens
from queenright.server.settings import InvalidSettingsError, load_settings


def test_credentials_in_a_url_are_masked() -> None:
    settings = load_settings(
        judging={
            "prometheus_url": "http://ada:hunter2hunter2@prometheus:9090/prefix/",
            "tempo_url": "https://ada:hunter2hunter2@tempo",
        }
    )

    result = yaml.safe_dump(settings.model_dump(mode="json"))

    assert "hunter2" not in result + repr(settings)
    assert "prometheus_url: http://prometheus:9090/prefix" in result
    assert "tempo_url: https://tempo" in result


def test_invalid_url_is_rejected_without_showing_it() -> None:
    with pytest.raises(InvalidSettingsError) as refusal:
        load_settings(judging={"prometheus_url": "prometheus:9090/hunter2hunter2"})

    assert "judging.prometheus_url: [redacted] is refused" in str(refusal.value)
    assert "such as http://127.0.0.1:9090" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_bearer_tokens_are_read_from_private_files(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token\n")
    token.chmod(0o600)
    clients = {"prometheus_url": "http://prometheus:9090", "prometheus_token_file": token}

    prometheus, tempo = read_stack_tokens(load_settings(judging=clients).judging)
    token.chmod(0o644)
    with pytest.raises(InvalidSecretError, match=r"judging\.prometheus_token_file: .* run chmod 600"):
        read_stack_tokens(load_settings(judging=clients).judging)

    assert prometheus is not None
    assert prometheus.get_secret_value() == "a-token"
    assert tempo is None


def test_token_file_without_a_url_is_not_read(tmp_path: Path) -> None:
    settings = load_settings(judging={"tempo_token_file": tmp_path / "nowhere"})

    assert read_stack_tokens(settings.judging) == (None, None)
