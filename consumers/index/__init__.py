"""Finding things: one disposable SQLite file a run, made of its topics and of nothing else."""
