"""Presets: the defaults of jobs that come from another system, registered by the module that knows the system."""

from __future__ import annotations

from jobmill.core.job import NO_OPTIONS, JobOptions

_presets: dict[str, JobOptions] = {}


def register_preset(name: str, options: JobOptions) -> None:
    """Give jobs with `preset=name` these defaults instead of ours. Options of a job or of its handler come first."""
    _presets[name] = options


def is_registered(name: str | None) -> bool:
    """Whether a job with this preset can run here; None: it has none."""
    return name is None or name in _presets


def preset(name: str | None) -> JobOptions:
    """The defaults of a preset; none where no module has registered it."""
    return NO_OPTIONS if name is None else _presets.get(name, NO_OPTIONS)
