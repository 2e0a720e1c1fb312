"""The LLM gateway: token-in, token-out under a chat API. Entry point: `app.run`."""
