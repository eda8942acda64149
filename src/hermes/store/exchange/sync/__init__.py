"""Synchronising stores: each keeps, beside its rows, what it has sent and received of every session.

A document is a whole session, not a log of changes: shredding removes a file, nothing has to be compacted, and a lost or
repeated file does no harm. The price is that a changed session is written whole. A message is named by a digest of what it was
when it was first sent, so copies of a store, restored backups and the same history imported twice give the same names.

- `document.py`: the documents that stores exchange about a session and its forks, and how two of them become one
- `tables.py`: the tables of a store's documents
- `collect.py`: compares a session with its document, and puts the changes into it
- `apply.py`: puts a merged document into the rows
- `replica.py`: synchronises an open store with them
"""
