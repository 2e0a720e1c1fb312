"""Whether an engine served the weights whose label its calls bear."""
