"""Real servers that tests and benchmarks start themselves, on loopback, each in a directory of its own.

Nothing here needs pytest, and nothing is left behind: servers end with the process that started them.
"""
