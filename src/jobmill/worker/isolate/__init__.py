"""Isolation: a handler that runs in a process of its own, and the two ends of the pipe to it."""
