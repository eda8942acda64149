"""The way of a message: inbox, turns, replies, outbox, delivery."""
