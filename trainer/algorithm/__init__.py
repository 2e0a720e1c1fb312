"""How returns become a loss: one file an axis, pure functions on plain numbers and tensors; `recipe.py` is the form."""
