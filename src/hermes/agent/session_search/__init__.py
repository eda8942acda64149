"""The tool session_search: searches earlier conversations and answers in a limited length."""
