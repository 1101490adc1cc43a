"""Rules of this project that no linter knows; `python3 dev.py check` runs them."""
