"""Requests for other models: passed on unchanged, recorded as context. Entry point: `pass_on.UpstreamCalls`."""
