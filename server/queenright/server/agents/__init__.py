"""Agents that run inside the service."""
