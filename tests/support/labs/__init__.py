"""Platforms to test against: each a real server, or one of ours that speaks the vendor's protocol and checks requests."""
