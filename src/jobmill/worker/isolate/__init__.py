"""Isolation: runs a handler in a separate process. `parent` is the worker's end of the pipes, `child` the other end."""
