"""Convert the telemetry of agents into events: dialects read records, the assembler makes events of them."""
