"""Microsoft Teams, by the Bot Framework."""
