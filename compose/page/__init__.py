"""Serves a run's page: of a live run beside its processes, of an ended one from its folder."""
