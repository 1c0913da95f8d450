"""Grafana dashboards: their JSON, with the thresholds of the settings."""
