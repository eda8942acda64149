"""The session browser: a full-screen picker over every conversation."""
