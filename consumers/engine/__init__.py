"""Engines load versions: verified, synced, acknowledged, and the plug-in that vLLM loads."""
