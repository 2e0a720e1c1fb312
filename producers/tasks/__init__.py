"""What to run next: the dataset, the pace, where the run stands. Entry point: `admission.run`."""
