"""The file under the SQLite measures: copies to be used up, and what is written to the disk on each run."""
