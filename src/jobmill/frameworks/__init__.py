"""Web frameworks: one module for each framework that needs more than `jobs.app_lifespan()`."""
