"""Terminal output: text, tables, live screens, progress bars, and the log filter."""
