"""`hermes`: parses, calls, prints."""
