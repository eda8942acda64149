"""The tool session_search: what earlier conversations say about something, in an answer of a limited length."""
