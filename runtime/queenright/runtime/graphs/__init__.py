"""Graphs as data, and their validation."""
