"""One turn of an agent: a model, its tools, and every message stored the moment it exists."""
