"""An episode's calls and tools joined to its spans, and to the agents at work there."""
