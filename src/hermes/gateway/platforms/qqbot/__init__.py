"""QQ bots."""
