"""A worker does not import the tests of a project, whose libraries it may not have."""

from __future__ import annotations
