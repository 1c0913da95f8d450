"""The commands, one module per group. Importing one stays cheap: what it needs is imported when it runs."""
