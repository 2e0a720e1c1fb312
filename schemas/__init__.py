"""Every record, topic name and codec on an arrow between rooms. Imports nothing of ours; every room imports it."""
