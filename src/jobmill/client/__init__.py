"""The client: what an application uses to define handlers, enqueue jobs, query them and manage them."""
