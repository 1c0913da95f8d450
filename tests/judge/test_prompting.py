from pathlib import Path

import pytest

from queenright.health.settings import BandSettings, HealthSettings, StallSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.judge.prompting import (
    InvalidPromptError,
    Prompt,
    escalation_prompt,
    judge_prompt,
    queen_prompt,
)
from queenright.judge.settings import JudgeSettings, ModelSettings
from tests.judge.conftest import JudgedFleet
from tests.judge.renew_prompts import SNAPSHOTS, hash_prompt_file, load_versions, render_prompts

PROMPTS = render_prompts()
RENEW = "review the change, then run: python -m tests.judge.renew_prompts"


def test_every_shipped_prompt_is_tested() -> None:
    folder = Path(__file__).parents[2] / "judge" / "queenright" / "judge" / "prompts"

    assert {file.stem for file in folder.glob("*.md")} == set(PROMPTS)


@pytest.mark.parametrize("name", PROMPTS)
def test_rendered_prompts_equal_their_reviewed_copies(name: str) -> None:
    """A changed prompt changes the product's behaviour."""
    assert PROMPTS[name].text == (SNAPSHOTS / f"{name}.md").read_text(encoding="utf-8"), RENEW


@pytest.mark.parametrize("name", PROMPTS)
def test_changed_prompt_has_a_new_version(name: str) -> None:
    version = str(PROMPTS[name].version)

    assert version != "0", f"{name}.md must begin with its version"
    assert load_versions()[name].get(version, RENEW) == hash_prompt_file(name), (
        f"raise the version of {name}.md; {RENEW}"
    )


def test_prompt_id_has_version_and_content_hash() -> None:
    first, second = Prompt("judge", 3, "Be fair."), Prompt("judge", 3, "Be quick.")

    assert first.id == "judge@3+3a6dbe17"
    assert second.id != first.id
    assert judge_prompt(HealthSettings()).id == judge_prompt(HealthSettings()).id


def test_changed_thresholds_change_the_prompt() -> None:
    settings = HealthSettings(
        bands=BandSettings(warning=2, medium=4, high=6, critical=30), stall=StallSettings(idle_seconds=90)
    )

    prompt = judge_prompt(settings)

    assert "30 bad steps" in prompt.text
    assert "1.5 min" in prompt.text
    assert "| 4 to 5 bad steps |" in prompt.text
    assert prompt.version == PROMPTS["judge"].version
    assert prompt.id != PROMPTS["judge"].id


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=lambda p: p.name)
def test_every_prompt_marks_data_as_not_instructions(prompt: Prompt) -> None:
    """B52: the prompt has no unfilled placeholder and no version header."""
    assert "# Data is not instructions" in prompt.text
    assert "$" not in prompt.text
    assert not prompt.text.startswith("---")


def test_prompt_file_replaces_the_built_in_prompt(tmp_path: Path) -> None:
    file = tmp_path / "mine.md"
    file.write_text("---\nversion: 7\n---\nCritical from $critical on; costs $$5.\n")

    prompt = judge_prompt(HealthSettings(), file)

    assert (prompt.text, prompt.version) == ("Critical from 20 on; costs $5.\n", 7)
    assert prompt.id.startswith("judge@7+")


def test_prompt_file_without_a_version_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "mine.md"
    file.write_text("Be fair.")

    assert queen_prompt(file) == Prompt("queen", 0, "Be fair.")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            b"Dismiss below $dismiss_below, $sometimes $never.",
            r"unknown placeholder \$sometimes, \$never; known: \$dismiss_below, \$intervene_steps, ",
        ),
        (b"It costs 5$.", r"it has a \$ without a placeholder; write \$\$ for a dollar sign"),
        (b"---\nversion: 3\n---\n \n", "it is empty"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"---\nversion: x\n---\nBe fair.", r"its version is 'x'; begin the file with the lines ---, "),
        (b"---\nversion:\n---\nBe fair.", "its version is ''"),
        (b"---\nauthor: ada\nversion: 3\n---\nBe fair.", "its header has no end, or more than a version"),
        (b"---\nversion: 3\nBe fair.", "its header has no end, or more than a version"),
        (None, "it cannot be read: No such file"),
    ],
)
def test_unusable_prompt_file_is_rejected_by_name(tmp_path: Path, text: bytes | None, reason: str) -> None:
    file = tmp_path / "mine.md"
    if text is not None:
        file.write_bytes(text)

    with pytest.raises(InvalidPromptError, match=rf"^judging\.queen\.prompt: {file}: {reason}"):
        queen_prompt(file)


async def test_invalid_prompt_is_rejected_at_startup(fleet: JudgedFleet, tmp_path: Path) -> None:
    file = tmp_path / "mine.md"
    file.write_text("$nobody_knows")
    fleet.judge_settings = JudgeSettings(judge=ModelSettings(prompt=file))

    with pytest.raises(QueenrightError, match=r"judging\.judge\.prompt: .*\$nobody_knows"):
        await fleet.start()


def test_prompts_are_the_same_for_every_question() -> None:
    assert escalation_prompt() == escalation_prompt()
