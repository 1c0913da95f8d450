"""What comes back: what Alertmanager told people, and what they say in Slack and PagerDuty."""
