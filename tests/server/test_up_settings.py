from pathlib import Path

from queenright.server.settings import AgentsSettings, Settings
from queenright.server.up import keep_sessions_in_storage


def test_up_stores_agent_sessions_in_its_storage(tmp_path: Path) -> None:
    assert keep_sessions_in_storage(Settings(storage=tmp_path)).agents.storage == tmp_path / "agents"


def test_up_uses_the_configured_folder_for_sessions(tmp_path: Path) -> None:
    settings = Settings(storage=tmp_path, agents=AgentsSettings(storage=tmp_path / "other"))

    assert keep_sessions_in_storage(settings) == settings
