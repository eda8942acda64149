"""Transcripts: one JSON-lines file a session beside the database; output, which only a rebuild reads."""
