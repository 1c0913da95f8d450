"""Recovery of failed work from the last valid checkpoint, within limits, and with a watch afterwards."""
