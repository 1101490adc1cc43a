"""Handlers: the functions that run jobs, with their options, their context and the hooks beside them."""
