"""Tools: functions that a model may call."""
