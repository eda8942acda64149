"""Recall and session_search: earlier conversations for the agent."""
