"""A crontab's stores; each imports its driver, and only it does."""
