"""`hermes sessions …`: the record, from the shell. One file a subject; group.py says which command is in which."""
