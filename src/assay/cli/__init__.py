"""The ``assay`` command."""

import sys


def main() -> None:
    """See `assay.cli.app.main`; whatever is slow to import is imported in here."""
    try:
        from assay.cli import app

        app.main()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
