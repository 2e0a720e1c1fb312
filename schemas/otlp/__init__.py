"""The shape that OTLP's requests share, and what can be read of one that is damaged."""
