"""The servers for other programs, over HTTP and MCP."""
