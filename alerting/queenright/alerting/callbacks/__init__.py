"""Callbacks from Alertmanager, Slack and PagerDuty."""
