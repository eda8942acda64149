"""Search by meaning: a vector for each message, made in the background and used to look again at what the words found.

`encoders` turns text into vectors with the models that are installed, `vectors` keeps them in the store, and its `VectorIndexer`
makes them. Nothing here is needed: without the extra, without a model or without vectors, the ranking by words stands.
"""
