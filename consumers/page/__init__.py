"""The page: a run as a browser shows it, live or ended."""
