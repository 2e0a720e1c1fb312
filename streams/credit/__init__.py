"""Stage `credit`: groups close, and their episodes become transitions."""
