"""Stage `normalize`: raw records become facts of episodes."""
