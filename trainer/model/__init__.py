"""The model: what trains, what engines get, and an independent witness of its logprobs."""
