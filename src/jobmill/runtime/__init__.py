"""Parts that the loops of worker, client and crontab share: backoff, watchdog, queues, batcher, threads, tasks."""
