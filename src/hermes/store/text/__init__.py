"""Text without SQL: the query language, the text of the index, word forms."""
