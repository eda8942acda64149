"""The messengers: the same conversation on every platform."""
