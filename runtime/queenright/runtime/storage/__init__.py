"""Persistence: sessions, conversations, checkpoints and logs on disk."""
