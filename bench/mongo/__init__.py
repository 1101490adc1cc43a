"""The server under the MongoDB measures: databases to be used up, and what the server itself spent on each run."""
