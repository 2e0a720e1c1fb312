"""What each call of a closed group is worth: one file a strategy, each a pure function with its formula and source."""
