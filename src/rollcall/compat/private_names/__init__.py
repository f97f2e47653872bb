"""Private names that code elsewhere uses, which cannot move here (a hook, a subclass's method): one entry per file."""
