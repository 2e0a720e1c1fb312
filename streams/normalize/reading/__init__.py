"""What can be read from a span whatever its dialect: a tool's outcome, an answer's digest, hints at the agent."""
