"""Figures of a run, as plotly figures."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from assay.scores import Scores

# Blue - white - vermilion: told apart by every common kind of colour blindness, and in print.
DIVERGING = [[0.0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1.0, "#b2182b"]]
POSITIVE, NEGATIVE = "#b2182b", "#2166ac"


def head_map(scores: Scores) -> go.Figure | None:
    """Importance of every head, layer by head; None if no heads were scored."""
    heads = [
        (c.layer, c.unit, value)
        for c, value in zip(scores.components, scores.importance, strict=True)
        if c.site == "heads"
    ]
    if not heads:
        return None
    grid = np.full((1 + max(layer for layer, _, _ in heads), 1 + max(unit or 0 for _, unit, _ in heads)), np.nan)
    for layer, unit, value in heads:
        grid[layer, unit] = value
    limit = float(np.nanmax(np.abs(grid))) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=grid,
            zmin=-limit,
            zmax=limit,
            colorscale=DIVERGING,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": scores.unit}, "thickness": 12},
            hovertemplate="layer %{y}, head %{x}<br>importance %{z:+.4g}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="head", dtick=1 if grid.shape[1] <= 16 else None)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if grid.shape[0] <= 16 else 5)
    return _styled(figure, height=max(260, 90 + 18 * grid.shape[0]))


def mlp_bars(scores: Scores) -> go.Figure | None:
    """Importance of every MLP by layer, with the standard error over prompts; None if none was scored."""
    frame = scores.to_pandas()
    mlps = frame[frame["site"] == "mlps"]
    if mlps.empty:
        return None
    importance = mlps["importance"].to_numpy(float)
    error = mlps["stderr_prompts"].to_numpy(float)
    figure = go.Figure(
        go.Bar(
            x=importance,
            y=mlps["layer"].to_numpy(int),
            orientation="h",
            marker_color=[POSITIVE if value >= 0 else NEGATIVE for value in importance],
            error_x=None if np.isnan(error).any() else {"array": error, "thickness": 1, "width": 2},
            hovertemplate="MLP of layer %{y}<br>importance %{x:+.4g}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=scores.unit, zeroline=True)
    figure.update_yaxes(title_text="layer", autorange="reversed", dtick=1 if len(mlps) <= 16 else 5)
    return _styled(figure, height=max(260, 90 + 18 * len(mlps)))


def _styled(figure: go.Figure, height: int) -> go.Figure:
    return figure.update_layout(
        height=height,
        margin={"l": 50, "r": 10, "t": 10, "b": 45},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#667085", "size": 12},
    )
