"""What loops share: backoff, watchdog, handoff queue, batcher, threads and tasks."""
