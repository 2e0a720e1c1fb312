"""Scores that people give elsewhere, in Langfuse, Phoenix or MLflow, read as feedback. Entry point: `polls.Polls`."""
