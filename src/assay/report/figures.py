"""Figures of a run, as plotly figures: one for each kind of site that was scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from assay.report.words import scale
from assay.scores import Scores
from assay.sites import KINDS, Component

# Blue - white - vermilion: told apart by every common kind of colour blindness, and in print.
DIVERGING = [[0.0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1.0, "#b2182b"]]
POSITIVE, NEGATIVE = "#d6453d", "#3b82c9"
"""Of lines and dots; seen on light and on dark."""
INK_SOFT = "#737d90"
GRID = "rgba(125, 135, 150, 0.25)"
"""Read on light and dark pages, as is the one before."""
MAP_MARK = {"color": "#1b1f24", "width": 1.5}
"""Outline of marks on a map."""
MOST_COLUMNS = 128
"""Wider maps (of neurons) cannot be read; the table lists their largest."""

NAMES = {"heads": "head", "mlps": "MLP", "attention": "attention layer", "q": "head's queries"}
NAMES |= {"k": "key-value head's keys", "v": "key-value head's values", "embeddings": "position's embedding"}


def figures(scores: Scores) -> list[tuple[str, str, go.Figure]]:
    """Name, title and figure of each kind of site: a map of layer by unit or position, or bars by layer."""
    found = []
    error = scores.to_pandas()["stderr_prompts"].to_numpy(float)
    for site in dict.fromkeys(component.site for component in scores.components):
        mine = [i for i, component in enumerate(scores.components) if component.site == site]
        components = [scores.components[i] for i in mine]
        importance = scores.importance[mine]
        title = f"Importance of each {NAMES.get(site, site)}"
        if any(component.unit is not None for component in components):
            columns = [position_of(component) for component in components]
            figure = _map(scores, components, columns, importance, KINDS[site].unit_name)
        elif len({component.position for component in components}) > 1:
            columns = [position_of(component) for component in components]
            title = f"Importance of {site} at each position"
            figure = _map(scores, components, columns, importance, "position")
        else:
            figure = _bars(scores, components, importance, error[mine])
        if figure is not None:
            where = {component.position for component in components}
            (position,) = where if len(where) == 1 else (None,)
            found.append((site, title if position is None else f"{title} @{position}", figure))
    return found


def _map(
    scores: Scores, components: Sequence[Component], columns: Sequence[int], importance: np.ndarray, axis: str
) -> go.Figure | None:
    """Layer by column; None if it could not be read."""
    if max(columns) >= MOST_COLUMNS or len({(c.layer, c.unit, c.position) for c in components}) > len(
        {(c.layer, column) for c, column in zip(components, columns, strict=True)}
    ):
        return None
    layers = [component.layer for component in components]
    first = min(layers)
    grid = np.full((1 + max(layers) - first, 1 + max(columns)), np.nan)
    for layer, column, value in zip(layers, columns, importance, strict=True):
        grid[layer - first, column] = value
    limit = float(np.nanmax(np.abs(grid))) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=grid,
            y=list(range(first, first + len(grid))),
            zmin=-limit,
            zmax=limit,
            colorscale=DIVERGING,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": scale(scores)}, "thickness": 12},
            hovertemplate=f"layer %{{y}}, {axis} %{{x}}<br>importance %{{z:+.4g}}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=axis, dtick=1 if grid.shape[1] <= 16 else None)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if grid.shape[0] <= 16 else 5)
    return styled(figure, height=max(260, 90 + 18 * grid.shape[0]))


def _bars(scores: Scores, components: Sequence[Component], importance: np.ndarray, error: np.ndarray) -> go.Figure:
    """One bar a layer, with the standard error over prompts."""
    figure = go.Figure(
        go.Bar(
            x=importance,
            y=[component.layer for component in components],
            orientation="h",
            marker_color=[POSITIVE if value >= 0 else NEGATIVE for value in importance],
            error_x=None if np.isnan(error).any() else {"array": error, "color": INK_SOFT, "thickness": 1, "width": 2},
            hovertemplate="layer %{y}<br>importance %{x:+.4g}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=scale(scores), zeroline=True)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if len(components) <= 16 else 5)
    return styled(figure, height=max(260, 90 + 18 * len(components)))


def position_of(component: Component) -> int:
    """The column of a component in a map."""
    if component.unit is not None:
        return component.unit
    return component.position if isinstance(component.position, int) else -1


def styled(figure: go.Figure, height: int) -> go.Figure:
    """Transparent, so that it fits pages light and dark."""
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=INK_SOFT)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=INK_SOFT)
    return figure.update_layout(
        height=height,
        margin={"l": 50, "r": 10, "t": 10, "b": 45},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK_SOFT, "size": 12, "family": "system-ui, sans-serif"},
    )
