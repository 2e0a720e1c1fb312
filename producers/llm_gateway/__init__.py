"""An OpenAI-style chat API in front of the engine: token-in, token-out, every call on the log."""
