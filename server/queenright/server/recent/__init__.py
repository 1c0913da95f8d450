"""The newest rows of the store, kept in memory until they change."""
