"""What is done about a worker that gets nowhere: nudge, escalate, terminate, recover."""
