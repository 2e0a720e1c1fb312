"""Rollouts are run: agents, graders and the processes that hold them. Entry point: `runner.run`."""
