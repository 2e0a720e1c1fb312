"""Which conversation a captured call is in."""
