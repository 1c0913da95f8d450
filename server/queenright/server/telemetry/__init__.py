"""Convert the telemetry of agents into events: dialects read records, the assembler creates events."""
