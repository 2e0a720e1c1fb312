"""schemas/log on Apache Kafka, and the topics of a run on a cluster."""
