"""The methods of SessionDB, by subject."""
