"""Results that a notebook shows: a summary where one stands at the end of a cell, and figures by `plot`.

What a result looks like is decided on a floor above it (`assay.report.notebooks`), so it is asked for by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

LOOKS = "assay.report.notebooks"


class Shown:
    """A result that a notebook shows."""

    def plot(self, name: str | None = None) -> go.Figure:
        """A figure of this result's page.

        Args:
            name: which; the first if None.

        Raises:
            OptionError: there is no such figure, or none at all.
        """
        figure: go.Figure = import_module(LOOKS).plot(self, name)
        return figure

    def _repr_html_(self) -> str:
        summary: str = import_module(LOOKS).summary(self)
        return summary
