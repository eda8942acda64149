"""The agent inside an editor, by the Agent Client Protocol."""
