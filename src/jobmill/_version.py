"""The version, in a place that costs nothing to read."""

__version__ = "0.1.0"
