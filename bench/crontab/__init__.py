"""The server under the crontab's measures: a collection to be used up, and what the server itself spent on each run."""
