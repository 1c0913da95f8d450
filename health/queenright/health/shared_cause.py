"""What trouble of several workers may have in common: their tickets are one message then."""

from __future__ import annotations

from typing import Final

from queenright.health.findings import Finding, FindingKind
from queenright.health.vitals import VitalSigns

_MCP_TOOL: Final = "mcp__"


def shared_cause(v: VitalSigns, finding: Finding) -> str:
    """
    Return what other workers with the same trouble share with this one; empty if that is nothing.

    That is the provider of its model, else the model, if its calls fail: ``provider:anthropic``. Or the MCP
    server whose tools fail: ``mcp:github``. Other tools of one name are often of each worker's own.
    """
    if finding.kind is FindingKind.PROVIDER_FAILURE:
        named = v.provider or v.model
        return f"provider:{named}" if named else ""
    if finding.kind is FindingKind.ERROR_STREAK and v.streak_tool.startswith(_MCP_TOOL):
        server = v.streak_tool.removeprefix(_MCP_TOOL).partition("__")[0]
        return f"mcp:{server}" if server else ""
    return ""
