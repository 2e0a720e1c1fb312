"""A person asks the trained policy, through the agent that it was trained in."""
