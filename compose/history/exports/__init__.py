"""Files of exported telemetry, as a source run's log."""
