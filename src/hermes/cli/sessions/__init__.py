"""`hermes sessions …`: the store, from the shell. One file for each subject; group.py maps commands to files."""
