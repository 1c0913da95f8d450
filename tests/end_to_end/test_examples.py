"""The examples run with the commands in their READMEs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.instrumentation.parts import Otlp
from tests.isolation import environment

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent.name for path in ROOT.glob("examples/*/README.md"))


def list_blocks(example: str, language: str) -> list[str]:
    readme = (ROOT / "examples" / example / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)


def run_command(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    receiver = Otlp()
    env = environment(HOME=str(home), PATH=path, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    try:
        return subprocess.run(
            command, shell=True, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
    finally:
        receiver.stop()


def find_artifacts(home: Path, example: str) -> Path:
    [folder] = (home / ".queenright" / "agents" / example / "sessions").glob("*/artifacts")
    return folder


def test_every_example_has_a_readme_with_commands() -> None:
    assert {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()} == set(EXAMPLES)
    assert len(EXAMPLES) >= 2
    for example in EXAMPLES:
        assert len(list_blocks(example, "sh")) == 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_prints_its_documented_output(example: str, tmp_path: Path) -> None:
    command_block, json_command = list_blocks(example, "sh")

    text_result = run_command(command_block, tmp_path)
    json_result = run_command(json_command, tmp_path)

    assert (text_result.returncode, text_result.stderr) == (0, "")
    _, *output_lines, folder = text_result.stdout.splitlines()
    expected_lines = list_blocks(example, "text")[0].splitlines()
    assert folder.startswith("Session session_")
    assert sorted(output_lines) == sorted(expected_lines)
    # Two nodes of docs_checker run concurrently, so either may end first.
    assert [line for line in output_lines if line[:5] != "find_"] == [
        line for line in expected_lines if line[:5] != "find_"
    ]
    assert json_result.returncode == 0, json_result.stderr
    summary = json.loads(json_result.stdout)
    assert (summary["status"], summary["agent"]) == ("completed", example)
    assert summary["goal"]["achieved"] is True


def test_docs_checker_finds_the_four_faults_of_its_sample_and_reports_them(tmp_path: Path) -> None:
    result = run_command(list_blocks("docs_checker", "sh")[0], tmp_path)

    report = (find_artifacts(tmp_path, "docs_checker") / "report.md").read_text(encoding="utf-8")
    assert [line for line in report.splitlines() if line.startswith(("- ", "## "))] == [
        "## Broken links (2)",
        "- index.md, line 3: `guides/usage.md`: no such file",
        "- index.md, line 4: `guides/install.md#questions`: no such heading",
        "## Stale commands (2)",
        "- guides/install.md, line 7: `./setup.sh --fast`: the script ./setup.sh does not exist",
        "- index.md, line 8: `make deploy`: the Makefile has no target 'deploy'",
    ]
    assert "not met: links, commands" in result.stdout


def test_docs_checker_calls_no_model_for_a_correct_folder(tmp_path: Path) -> None:
    result = run_command(list_blocks("docs_checker", "sh")[1], tmp_path)

    assert json.loads(result.stdout)["path"][-1] == "write_clean_report"
    report = (find_artifacts(tmp_path, "docs_checker") / "report.md").read_text(encoding="utf-8")
    assert "1 pages" in report


def test_log_digest_counts_the_errors_of_its_sample(tmp_path: Path) -> None:
    run_result = run_command(list_blocks("log_digest", "sh")[1], tmp_path)

    result = json.loads(run_result.stdout)
    digest = (find_artifacts(tmp_path, "log_digest") / "digest.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(.*?)` \| (\S+) \| (\d+) \|$", digest, re.MULTILINE)
    logs = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("examples/log_digest/sample/*")}
    errors = sum(len(re.findall(r"ERROR|CRITICAL", text)) for text in logs.values())
    assert result["outputs"] == {"digest": "digest.md", "errors": errors}
    assert sum(int(count) for count, *_ in rows) == errors
    for _, pattern, log, line in rows:
        expected = re.escape(pattern).replace("<n>", r"[\d.]+")
        assert re.search(expected, logs[log].splitlines()[int(line) - 1])


def test_log_digest_names_its_missing_variable(tmp_path: Path) -> None:
    result = run_command("queenright run examples/log_digest", tmp_path)

    assert result.returncode == 1
    assert "LOG_FOLDER" in result.stderr


def test_docs_checker_names_its_missing_input(tmp_path: Path) -> None:
    result = run_command("""queenright run examples/docs_checker --input '{"folder": "nowhere"}'""", tmp_path)

    assert result.returncode == 1
    assert "'nowhere'" in result.stdout
    assert "`folder`" in result.stdout


def test_docs_checker_finds_no_faults_in_our_docs(tmp_path: Path) -> None:
    run_result = run_command(
        """queenright run examples/docs_checker --input '{"folder": "docs"}' --json""", tmp_path
    )

    folder = find_artifacts(tmp_path, "docs_checker")
    assert json.loads(run_result.stdout)["goal"]["achieved"], (folder / "report.md").read_text(
        encoding="utf-8"
    )
