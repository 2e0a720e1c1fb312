"""Evaluations in spans and log records, one file a convention. Entry point: `read.read_evaluations`."""
