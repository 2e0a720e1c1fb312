"""What travels: one module for each topic's records, and the codec that makes them bytes."""
