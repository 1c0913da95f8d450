"""What the user's own stack knows of workers: Prometheus' metrics and traces, read only and bounded."""
