"""Training on what lies there: a run's `transitions` that were made of another run's raw topics (docs/replay.md)."""
