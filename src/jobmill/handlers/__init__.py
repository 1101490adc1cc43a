"""Handlers: the functions that run jobs, with their options and context; hooks and usage recorders."""
