"""A stored job that cannot be read."""

from __future__ import annotations


class UnreadableJob(Exception):
    """Why a stored job cannot be read; the text is the reason."""
