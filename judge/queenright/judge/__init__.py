"""Judge and queen: what stands between a finding and a person. ``colony`` is the whole of it."""
