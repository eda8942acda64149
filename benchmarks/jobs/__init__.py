"""One measurement a file. Each runs in a process of its own, in the interpreter of the contestant it
measures, takes one JSON argument and prints one JSON line; nothing here imports outside the standard
library at the top, because the rival's environment has nothing of ours.
"""
