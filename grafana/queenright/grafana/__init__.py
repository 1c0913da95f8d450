"""Grafana dashboards, with thresholds taken from the settings."""
