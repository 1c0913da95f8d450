"""Clients for the user's Prometheus and Tempo. They read metrics and traces of workers, within limits."""
