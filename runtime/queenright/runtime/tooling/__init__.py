"""Tools: functions that a model can call."""
