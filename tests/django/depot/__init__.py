"""An app whose tasks are in modules of a package."""
