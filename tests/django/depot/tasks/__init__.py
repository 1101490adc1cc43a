"""Imports nothing: a worker finds the modules of this package."""
