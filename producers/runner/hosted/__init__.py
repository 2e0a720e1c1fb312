"""What runs under the user's Python, where we may not be installed: loaded by path, the standard library alone."""
