"""Talking to Redis servers: connections, deadlines, clusters, and their errors as ours."""
