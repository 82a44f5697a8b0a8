"""The ``assay`` command."""

from assay.cli.app import main

__all__ = ["main"]
