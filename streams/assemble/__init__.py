"""Stage `assemble`: facts become episodes, joined, rewarded and closed once."""
