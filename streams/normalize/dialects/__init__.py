"""What a span means in each convention: one file a dialect, tried by the order of the table."""
