"""History as a dataset: what a run recorded is folded again, under the same rules or under others."""
