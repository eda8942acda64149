"""`make recall`: how often the right session and message are among the first hits of a natural question."""
