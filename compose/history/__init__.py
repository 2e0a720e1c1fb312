"""A run of another run's history: opened, folded again, trained on."""
