"""Transitions become weight versions: batches -> advantages -> losses -> step -> checkpoint -> publish."""
