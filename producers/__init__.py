"""Data enters here: spans, calls and rollouts become records on raw topics."""
