"""What an agent that we do not start may load: a span exporter to Kafka, and a hook that reads its parent's trace."""
