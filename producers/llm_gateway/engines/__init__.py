"""The engines behind the gateway: how they are asked, and which version labels they may bear."""
