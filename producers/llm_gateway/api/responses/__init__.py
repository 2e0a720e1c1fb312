"""OpenAI Responses: `items` and `read` make a ChatRequest of a body, `write` events back; `api` puts them together."""
