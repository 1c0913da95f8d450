"""
Grafana dashboards as code.

The builders (``fleet``, ``agent``) require grafana-foundation-sdk, a development dependency. ``queries``
reads the generated JSON and has no dependencies.
"""

from __future__ import annotations

from queenright.grafana.queries import PanelQuery, UnknownVariableError, annotation_queries, queries

__all__ = ["PanelQuery", "UnknownVariableError", "annotation_queries", "queries"]
