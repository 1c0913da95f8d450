"""Clients for the user's Prometheus and Tempo: metrics and traces of workers, read-only and bounded."""
