"""`python -m jobmill` is `jobmill`."""

from __future__ import annotations

from jobmill.cli import main

if __name__ == "__main__":
    main()
