"""The gateway: one API for a fleet in several partitions."""
