"""Agents loaded from folders: specification, code, credentials, MCP servers and lifecycle tools."""
