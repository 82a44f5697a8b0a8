"""What a method declares, and the one loop that runs any of them over prompts and components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from torch import Tensor
from tqdm import tqdm

from assay.data.baseline import Baseline
from assay.data.encoding import Row, default_metric, encode
from assay.data.metrics import Metric, metric_named
from assay.data.pairs import PromptPairs
from assay.engine.baseline import measure_baseline
from assay.engine.batches import DEFAULT_MEMORY, Direction, make_batches, parse_memory
from assay.engine.cost import CostMeter
from assay.engine.response import Response, Source
from assay.engine.sources import MeanOver
from assay.errors import DataError, InterventionError, OptionError
from assay.methods.provenance import describe_environment, describe_model
from assay.model import Model
from assay.scores import Scores
from assay.sites import select

DEFAULT_SITES = "heads,mlps"


@dataclass(frozen=True)
class Setting:
    """What a method may need besides the response."""

    model: Model
    rows: list[Row]
    metric: Metric
    seed: int
    mean: MeanOver
    reference: PromptPairs | None
    memory: int
    cost: CostMeter


@dataclass(frozen=True)
class Method:
    """A way to know or guess g(1) - g(0), as arithmetic on `Response`.

    ``compute`` gives (C, R) values for one batch. ``source`` makes what components are set to, where that
    is not the other prompt's run.
    """

    name: str
    description: str
    source_note: str
    """Where it comes from: paper, equation."""
    compute: Callable[[Response, Setting], Tensor]
    exact: bool = False
    estimates_effect: bool = True
    signed: bool = True
    uses_gradients: bool = False
    source: Callable[[Setting], Source] | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("ablation",) if self.source is not None else ("denoise", "noise")


class MeasureOptions(TypedDict, total=False):
    """Options that every method takes; see `measure`."""

    sites: str
    metric: str | None
    direction: Direction | None
    memory: str
    seed: int
    mean: MeanOver
    reference: PromptPairs | None
    skip: bool
    force: bool
    progress: bool


def measure(
    method: Method,
    model: Model,
    pairs: PromptPairs,
    *,
    sites: str = DEFAULT_SITES,
    metric: str | None = None,
    direction: Direction | None = None,
    memory: str = DEFAULT_MEMORY,
    seed: int = 0,
    mean: MeanOver = "position",
    reference: PromptPairs | None = None,
    skip: bool = True,
    force: bool = False,
    progress: bool = False,
    on_baseline: Callable[[Baseline, Metric], None] = lambda baseline, metric: None,
    configuration: dict[str, Any] | None = None,
) -> Scores:
    """Run a method for every component of the given sites on every pair.

    Args:
        sites: comma-separated kinds, see ``assay list sites``.
        metric: see ``assay list metrics``; the task's own if None.
        direction: ``denoise`` (default; the corrupted run is patched with clean activations) or ``noise``
            (the clean run is patched with corrupted ones). Ablations take none.
        memory: what patched sequences and recordings may take beyond the weights, such as ``2G``.
        seed: of methods that draw.
        mean: for mean ablation: per ``position`` or over ``all-positions``.
        reference: for mean ablation: pairs whose corrupted prompts are averaged; the run's own if None.
        skip: leave out what is known to change nothing.
        force: go on although the model cannot tell clean from corrupted.
        progress: show a bar with the time left on standard error.
        on_baseline: called once the unpatched prompts have been run.
        configuration: what to store as the run's configuration instead of these options.

    Raises:
        OptionError, DataError, ModelError, InterventionError: see their classes.
    """
    components = select(model, sites)
    chosen = default_metric(model, pairs) if metric is None else metric_named(metric)
    direction = require_direction(method, direction)
    require_gradient(method, chosen)
    budget = parse_memory(memory)
    model.require_eval_mode()
    rows = encode(model, pairs, chosen)
    cost = CostMeter()
    with cost.stage("baseline"):
        baseline = measure_baseline(model, rows, len(pairs), chosen, budget, cost)
    on_baseline(baseline, chosen)
    if not baseline.tells_apart and not force:
        raise DataError(
            f"{model.name} does not tell clean from corrupted prompts on {pairs.task}: {chosen.name} is "
            f"{baseline.clean.mean():.4g} on clean and {baseline.corrupted.mean():.4g} on corrupted prompts "
            f"(difference {baseline.difference:.3g}, standard error {baseline.difference_stderr:.2g}). There is no "
            "behaviour to attribute. Use --force to go on all the same."
        )
    setting = Setting(model, rows, chosen, seed, mean, reference, budget, cost)
    with cost.stage("source"):
        source = method.source(setting) if method.source is not None else None
    values = np.zeros((len(components), len(pairs)))
    total = len(components) * len(rows)
    with cost.stage(method.name), tqdm(total=total, desc=method.name, disable=None if progress else True) as bar:
        for batch in make_batches(model, rows, direction, budget):
            response = Response(
                model, batch, chosen, components, source=source, skip=skip, memory=budget, cost=cost, advance=bar.update
            )
            found = method.compute(response, setting).double().cpu().numpy()
            np.add.at(values.T, batch.examples.cpu().numpy(), found.T)
    for component, of_examples in zip(components, values, strict=True):
        if not np.isfinite(of_examples).all():
            raise InterventionError(f"The {method.name} value of {component.name} is not finite; check the weights.")
    options = {"sites": sites, "metric": chosen.name, "direction": direction, "seed": seed, "force": force}
    return Scores(
        components=components,
        values=values,
        pairs=pairs,
        method=method.name,
        direction=direction,
        metric=chosen.name,
        unit=chosen.unit if method.estimates_effect else "none",
        exact=method.exact,
        estimates_effect=method.estimates_effect,
        signed=method.signed,
        baseline=baseline,
        cost=cost.summary(sum(len(row.clean) for row in rows) * model.n_layers),
        configuration=configuration or {"task": pairs.task, "n": len(pairs), "method": method.name, **options},
        provenance={"model": describe_model(model), **describe_environment(model), "memory": memory, "skip": skip},
    )


def require_direction(method: Method, direction: str | None) -> Direction:
    """The direction to use; denoise or, for ablations, their own if None."""
    if direction is None:
        return method.directions[0]
    if direction not in method.directions:
        if method.directions == ("ablation",):
            raise OptionError(f"{method.name} damages the clean run; it takes no --direction.")
        raise OptionError(f"There is no direction {direction!r}. Choose one of {', '.join(method.directions)}.")
    return direction


def require_gradient(method: Method, metric: Metric) -> None:
    """Refuse a metric without a gradient before anything has run."""
    if method.uses_gradients and not metric.differentiable:
        raise OptionError(
            f"{method.name} needs a gradient, which {metric.name} does not have. Use activation-patching or an "
            "ablation, or another metric."
        )


def effect(response: Response, _: Setting) -> Tensor:
    """g(1) - g(0) by intervention."""
    return response.value(1) - response.base_values
