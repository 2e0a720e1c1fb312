"""What outlives the process: checkpoints, versions, claims, acknowledged records."""
