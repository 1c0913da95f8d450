"""What agents send about themselves becomes events: dialects, observations, one assembler."""
