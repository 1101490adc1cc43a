"""Presets by name: a worker imports the module that registers the preset of a job when it meets the first such job."""

from __future__ import annotations

from jobmill.core.job import JobOptions
from jobmill.core.lifecycle import Policy, policy
from jobmill.core.presets import UnknownPreset

#: Packages name the modules that register presets in this group of entry points.
ENTRY_POINTS = "jobmill.presets"


def policy_with_presets(options: JobOptions, otherwise: Policy) -> Policy:
    """`policy`, after importing the module that registers the job's preset. UnknownPreset where there is none."""
    try:
        return policy(options, otherwise)
    except UnknownPreset as unknown:
        _import_preset(unknown.name)
        return policy(options, otherwise)


def _import_preset(name: str) -> None:
    from importlib.metadata import entry_points  # takes a moment, and few jobs have a preset

    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        entry_point.load()
