"""The composition root: configuration, processes, Kafka and the command line."""
