"""What an agent speaks: requests read, answers written, one pair of modules an API."""
