"""Widgets that several screens have."""
