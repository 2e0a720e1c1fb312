"""The Faust process around a fold: it reads, emits, marks and commits; the folds know nothing of it."""
