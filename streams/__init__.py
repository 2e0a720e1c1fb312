"""Raw records become facts, episodes, and transitions: normalize -> assemble (AIR inside) -> credit."""
