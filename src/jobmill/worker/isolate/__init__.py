"""Isolation: runs a handler in a separate process.

In the worker: `isolation` chooses how, `spawn` starts an interpreter for each attempt, `server_link` is connected to
the fork server, `process` to one process that the server forked, and `pool` reuses such processes.
In the fork server: `server`. In the process of an attempt: `child`, and `forked` if the server forked it.
Both sides: `protocol` (what they send), `find` (how a handler is found by name), `death` (why a process ended).
"""
