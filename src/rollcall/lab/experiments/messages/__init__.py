"""One rank sends, another receives."""
