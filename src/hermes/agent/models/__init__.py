"""Models: the choice of one, endpoints, the embedded one, their files."""
