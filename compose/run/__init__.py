"""One run: its settings, folder, processes, supervision and report."""
