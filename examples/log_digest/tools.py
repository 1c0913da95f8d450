"""The agent's own tools. The MCP server reads the logs."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel


class Finding(BaseModel):
    """One kind of error."""

    log: str
    pattern: str
    count: int
    first_line: int


def write_digest(headline: str, findings: list[Finding], data_dir: Path) -> str:
    """
    Write the digest: a headline, and a table of the kinds of errors. Returns the file's name.

    Args:
        headline: One sentence: what a person should look at first.
        findings: The kinds of errors, the worst first.
    """
    rows = [f"| {f.count} | `{f.pattern}` | {f.log} | {f.first_line} |" for f in findings]
    table = ["| count | pattern | log | first line |", "| --- | --- | --- | --- |", *rows]
    data_dir.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["# Log digest", "", headline, "", *table])
    (data_dir / "digest.md").write_text(text + "\n", encoding="utf-8")
    return "digest.md"
