"""Agents from folders: their specification, code, credentials, MCP servers; and tools to look after them."""
