"""The API server: this agent for any program that speaks OpenAI's protocol."""
