"""Topics become effects: engines load versions, people watch, audits count."""
