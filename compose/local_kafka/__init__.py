"""A real single-node Apache Kafka on loopback, without Docker or system Java."""
