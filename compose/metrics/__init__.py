"""`/metrics` of each process, where Prometheus finds it, and what is made of the declared metrics."""
