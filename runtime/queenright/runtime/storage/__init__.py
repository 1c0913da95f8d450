"""What is kept on disk: sessions, conversations, checkpoints, logs."""
