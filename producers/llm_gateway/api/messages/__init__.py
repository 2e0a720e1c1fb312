"""Anthropic Messages: `read` a body into a ChatRequest, `write` events back; `api` puts both into a row of `APIS`."""
