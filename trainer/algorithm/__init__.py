"""How returns become a loss: one file an axis, pure functions on plain numbers and tensors.

`recipe.py` is a point on the axes, `recipes.toml` the points that have a name, `form.py` puts the axes together.
"""
