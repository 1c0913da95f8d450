"""Interventions on a stuck worker: nudge, escalate, terminate, recover."""
