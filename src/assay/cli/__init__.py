"""The ``assay`` command."""

import sys

from assay.cli.interrupts import heard, listen


def main() -> None:
    """See `assay.cli.app.main`; whatever is slow to import is imported in here."""
    listen()
    try:
        from assay.cli import app

        app.main()
    except (KeyboardInterrupt, Exception) as error:
        if not heard and not isinstance(error, KeyboardInterrupt):
            raise
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
