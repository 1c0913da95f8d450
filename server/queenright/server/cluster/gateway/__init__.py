"""The gateway: a single API for a fleet that is split into partitions."""
