"""What is subtracted from a return: one file a baseline, one row each in `recipe.py`."""
