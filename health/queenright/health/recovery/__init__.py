"""Recovery of failed work: from the last valid checkpoint, within limits, and watched afterwards."""
