"""The record for other agents, by the Model Context Protocol."""
