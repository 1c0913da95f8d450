"""One API for a fleet that is in several partitions."""
