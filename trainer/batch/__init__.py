"""Which groups train next, and how they become micro-batches."""
