"""Presets by name: a worker imports the module that registers the preset of a job when it meets the first such job."""

from __future__ import annotations

from jobmill.core.presets import is_registered

#: Packages name the modules that register presets in this group of entry points.
ENTRY_POINTS = "jobmill.presets"


def import_preset(name: str) -> None:
    """Import the module that registers a preset, unless it is registered or no package has such a module."""
    if is_registered(name):
        return
    from importlib.metadata import entry_points  # takes a moment, and few jobs have a preset

    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        entry_point.load()
