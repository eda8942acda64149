"""The client of OpenAI-compatible endpoints, on this machine and elsewhere."""
