"""Commands with heavy imports. Each is imported when it runs, so `--help` and completion stay fast."""
