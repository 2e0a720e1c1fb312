"""AIR: monitoring signals in an episode's spans become rewards of its calls."""
