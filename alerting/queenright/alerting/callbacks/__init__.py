"""Parse and verify callbacks from Alertmanager, Slack and PagerDuty."""
