"""How a batch becomes a loss: one file an axis, pure functions on tensors."""
