"""The accounting of a run, recomputed from its topics."""
