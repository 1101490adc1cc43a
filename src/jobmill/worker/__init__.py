"""The worker: an async shell that claims, runs and settles jobs. One loop, one file; decisions are the core's."""
