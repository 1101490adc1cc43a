"""The server under the Redis measures: a queue to be used up, and what the server itself spent on each run."""
