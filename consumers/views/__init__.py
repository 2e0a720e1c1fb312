"""What people see of a run, folded from its topics alone."""
