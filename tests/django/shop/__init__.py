"""An app with a model and tasks."""
