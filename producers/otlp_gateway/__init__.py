"""The OTLP gateway: spans of any SDK or Collector become records on `otlp_spans`. Entry point: `app.run`."""
