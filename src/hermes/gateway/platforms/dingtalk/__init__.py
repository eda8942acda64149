"""DingTalk, by its Stream mode and its HTTP API."""
