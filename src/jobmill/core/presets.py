"""Presets: the defaults of jobs that come from another system, registered by the module that knows the system."""

from __future__ import annotations

from jobmill.core.job import NO_OPTIONS, JobOptions

_presets: dict[str, JobOptions] = {}


class UnknownPreset(LookupError):
    """No module has registered the preset that a stored job names."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the preset {name!r} is not registered in this process")


def register_preset(name: str, options: JobOptions) -> None:
    """Give jobs with `preset=name` these defaults instead of ours. Options of a job or of its handler come first."""
    _presets[name] = options


def preset(name: str | None) -> JobOptions:
    """The defaults of a preset; UnknownPreset where no module has registered it."""
    if name is None:
        return NO_OPTIONS
    try:
        return _presets[name]
    except KeyError:
        raise UnknownPreset(name) from None
