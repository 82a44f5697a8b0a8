"""One component's response: the curve whose end every method tries to know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.baseline import Baseline
from assay.engine.cost import CostMeter
from assay.engine.response import Response
from assay.errors import OptionError, refuse_unknown
from assay.methods import METHODS
from assay.methods.method import AnyPairs, CommonOptions, Method, Setting
from assay.methods.plan import make_plan
from assay.methods.preparation import prepared
from assay.methods.sharded import Computer
from assay.model import Model
from assay.screening.abilities import abilities
from assay.screening.estimates import SEGMENTS
from assay.sites import Component, Selection, component_named

CURVE, TANGENT, PARABOLA, STEPS = "#1b7837", "#92c5de", "#2166ac", "#b2182b"


@dataclass(frozen=True, eq=False)
class ResponseCurve:
    """g(a) of one component on n prompts, and what derivatives say of it. Values are in the metric's unit."""

    component: Component
    model: str
    task: str
    metric: str
    unit: str
    strengths: NDArray[np.float64]
    """(P,) a, from 0 (unpatched) to 1 (patched)."""
    values: NDArray[np.float64]
    """(n, P) g(a)."""
    slopes: NDArray[np.float64]
    """(n, K) g' at 0, 1/K, ..., (K-1)/K; no columns where there are no second derivatives."""
    curvatures: NDArray[np.float64]
    """(n, K) g''."""
    notes: tuple[str, ...]
    baseline: Baseline
    metric_description: str
    metric_chosen_because: str
    direction: str
    cost: dict[str, Any]
    """As of `assay.Scores`: all that was run for the curve, the baseline included."""
    configuration: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def effect(self) -> float:
        """Mean of g(1) - g(0): the exact effect."""
        return float((self.values[:, -1] - self.values[:, 0]).mean())

    def tangent(self, a: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean first-order prediction at strengths ``a``."""
        line: NDArray[np.float64] = self.values[:, 0].mean() + a * self.slopes[:, 0].mean()
        return line

    def parabola(self, a: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean second-order prediction at strengths ``a``: HVP at a = 1."""
        return self.tangent(a) + a**2 * float(self.curvatures[:, 0].mean()) / 2

    def steps(self) -> NDArray[np.float64]:
        """(K + 1,) where MS-HVP is after each of its segments, on average."""
        count = self.slopes.shape[1]
        moves = self.slopes.mean(0) / count + self.curvatures.mean(0) / (2 * count**2)
        reached: NDArray[np.float64] = self.values[:, 0].mean() + np.concatenate([[0.0], np.cumsum(moves)])
        return reached

    def estimates(self) -> dict[str, float]:
        """The mean effect as methods estimate it that look at derivatives; none where there are no derivatives."""
        if not self.slopes.shape[1]:
            return {}
        start, end = float(self.values[:, 0].mean()), np.ones(1)
        return {
            "attribution patching": float(self.tangent(end)[0]) - start,
            "hvp": float(self.parabola(end)[0]) - start,
            f"ms-hvp, {self.slopes.shape[1]} segments": float(self.steps()[-1]) - start,
        }

    def plot(self) -> go.Figure:
        """Mean response with tangent, parabola, MS-HVP's steps and the exact end."""
        a, mean = self.strengths, self.values.mean(0)
        figure = go.Figure()
        lines = [("response g(a)", a, mean, {"color": CURVE, "width": 3}, "lines")]
        if self.slopes.shape[1]:
            count = self.slopes.shape[1]
            lines += [
                ("tangent (attribution patching)", a, self.tangent(a), {"color": TANGENT, "dash": "dash"}, "lines"),
                ("parabola (HVP)", a, self.parabola(a), {"color": PARABOLA, "dash": "dot"}, "lines"),
                (
                    f"MS-HVP, {count} steps",
                    np.arange(count + 1) / count,
                    self.steps(),
                    {"color": STEPS},
                    "lines+markers",
                ),
            ]
        for name, x, y, line, mode in lines:
            figure.add_scatter(name=name, x=x, y=y, line=line, mode=mode, hovertemplate="a = %{x:.2f}: %{y:.4g}")
        figure.add_scatter(
            name=f"exact end: {self.effect:+.4g}",
            x=[1.0],
            y=[mean[-1]],
            mode="markers",
            marker={"color": CURVE, "size": 13, "symbol": "diamond"},
            hovertemplate="g(1) = %{y:.4g}",
        )
        figure.update_xaxes(title_text="strength a of the patch")
        figure.update_yaxes(title_text=f"{self.metric} ({self.unit}), mean over {len(self.values)} prompts")
        unpatched = f"{self.baseline.clean.mean():+.4g} on clean and {self.baseline.corrupted.mean():+.4g} on corrupted"
        title = {
            "text": f"{self.component.name} of {self.model} on {self.task}".replace("<", "&lt;"),
            "subtitle": {"text": f"unpatched {self.metric} ({self.unit}): {unpatched} prompts"},
        }
        return figure.update_layout(title=title, height=520, legend={"orientation": "h", "y": -0.2})


def response_curve(
    model: Model,
    pairs: AnyPairs,
    component: Component | str,
    *,
    points: int = 21,
    segments: int = SEGMENTS,
    **options: Unpack[CommonOptions],
) -> ResponseCurve:
    """Patch one component with strengths from 0 to 1.

    Args:
        component: a component, or its short name, such as ``L23H3``, ``L3 MLP`` or ``L0N17 pre``.
        points: strengths, ends included; at least 2.
        segments: of MS-HVP.
        options: ``metric, direction, memory, align, chat``, as in `assay.measure`.

    Raises:
        OptionError: no such component, or fewer points or segments than a curve needs.
        AssayError: as `assay.measure`.
    """
    refuse_unknown("response_curve", options, ("points", "segments", *CommonOptions.__annotations__))
    require_grid(points, segments)
    if isinstance(component, str):
        component = component_named(model, component)
    with prepared(METHODS["activation-patching"], model, pairs, sites=Selection([component]), **options) as run:
        if len(run.setting.components) > 1:
            raise OptionError(f"{component.name} is a component at each position; choose one, such as @last.")
        allowed = abilities(model, run.setting.metric, run.direction, probes=1)
        cuts = segments if allowed.gradients and allowed.curvature else 0
        strengths = np.linspace(0, 1, points)
        cost = CostMeter()
        baseline, measured = run.measure_baseline(cost, by_start=True, force=True)
        shards = make_plan(model, run.setting.components, [batch for batch, _ in measured], by_component=True)
        method = Method(
            name="response",
            description="the response on a grid, with second-order steps",
            source_note="",
            compute=partial(_along, strengths.tolist(), cuts),
            outputs=points + 2 * cuts,
            by_component=True,
        )
        found = Computer(run, measured, cost, by_start=True, show=False).values(method, shards)[:, 0].T
        slopes, curvatures = np.split(found[:, points:], 2, axis=1)
        return ResponseCurve(
            component=run.setting.components[0],
            model=model.name,
            task=run.pairs.task,
            metric=run.setting.metric.name,
            unit=run.setting.metric.unit,
            strengths=strengths,
            values=found[:, :points],
            slopes=slopes,
            curvatures=curvatures,
            notes=allowed.notes,
            baseline=baseline,
            metric_description=run.setting.metric.description,
            metric_chosen_because=run.metric_chosen_because,
            direction=run.direction,
            cost=cost.summary(run.layer_tokens),
            configuration={**run.configuration, "method": "response", "points": points, "segments": segments},
            provenance=run.provenance(""),
        )


def require_grid(points: int, segments: int) -> None:
    """Refuse what is no grid.

    Raises:
        OptionError: fewer than 2 points or 1 segment.
    """
    if points < 2 or segments < 1:
        raise OptionError(f"A response needs 2 points and 1 segment at least, not {points} and {segments}.")


def _along(strengths: list[float], cuts: int, response: Response, _: Setting) -> Tensor:
    values = [response.value(a) for a in strengths]
    steps = [response.slope_and_curvature(k / cuts) for k in range(cuts)]
    found = [*values, *(slope for slope, _ in steps), *(curvature for _, curvature in steps)]
    return torch.cat([each.double() for each in found])
