"""Ablate several components in one run of the clean prompts, and hold that against ablating each alone.

Losses are metric(clean) - metric(ablated), per example: positive where a component helps.

Axes: G groups, C components, n examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import torch

from assay.data.baseline import Baseline
from assay.data.metrics import Metric
from assay.engine.baseline import PlainRuns
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.engine.joint import KINDS_OF_GROUPS, joint_derivatives, joint_values
from assay.engine.memory import Portions
from assay.engine.response import Response, Source
from assay.engine.sources import MeanOver
from assay.errors import InterventionError, OptionError
from assay.interactions.group_parts import Part, carried_out, parts_of
from assay.methods.method import DEFAULT_SITES, AnyPairs, CommonOptions, Method
from assay.methods.preparation import Prepared, prepared
from assay.methods.progress import progress_of
from assay.methods.registry import ablation_named
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.sites import AnySites, Component

JOINT = "joint ablation"
MOST_NUMBERS = 200_000_000
"""Second derivatives that are held at once: of every pair of components on every example."""


def group_ablation(ablation: str, name: str = "joint", *, second_order: bool = False) -> Method:
    """The ablation of this name, for groups of heads and MLPs.

    Raises:
        OptionError: there is none.
    """
    return replace(
        ablation_named(ablation),
        name=f"{name} ({ablation}-ablation)",
        kinds=KINDS_OF_GROUPS,
        at_positions=False,
        by_component=False,
        uses_gradients=second_order,
        second_order=second_order,
    )


@dataclass(eq=False)
class AblatedRuns:
    """The clean prompts of a run, to be ablated in any way."""

    run: Prepared
    baseline: Baseline
    measured: list[tuple[Batch, PlainRuns]]
    cost: CostMeter
    show: bool
    source: Source
    given: dict[str, Any] = field(default_factory=dict)
    """What `ablated_runs` was called with, but for the model and who computes."""
    cut: bool = False
    """Compute in parts, the same whoever computes them."""
    portions: Portions = field(default_factory=Portions)

    @property
    def components(self) -> tuple[Component, ...]:
        return tuple(self.run.setting.components)

    def losses(self, groups: Sequence[Sequence[int]]) -> np.ndarray:
        """(G, n) of what each example loses when all components of a group are ablated.

        Args:
            groups: numbers among ``components``; none empty.
        """
        if self.cut:
            return self._losses_in_parts(groups)

        def compute(response: Response) -> np.ndarray:
            lost = response.base_values.double() - joint_values(response, groups).double()
            found: np.ndarray = lost.cpu().numpy()
            return found

        return self._over_rows(JOINT, len(groups), len(groups), compute)

    def _losses_in_parts(self, groups: Sequence[Sequence[int]]) -> np.ndarray:
        found = np.zeros((len(self.run.pairs), len(groups)))
        total = len(groups) * sum(batch.rows for batch, _ in self.measured)
        with (
            progress_of(JOINT, total, 0, self.show) as advance,
            closing(carried_out(self, parts_of(self, groups), advance)) as results,
        ):
            for part, values in results:
                examples = self.measured[part.batch][0].examples.cpu().numpy()
                np.add.at(found, (examples[:, None], np.array(part.numbers)[None]), values.T)
        return self._finite(found)

    def losses_of(self, part: Part, advance: Callable[[int], object]) -> np.ndarray:
        """(G, R) losses of the groups of a part on the rows of its batch."""
        batch, plain = self.measured[part.batch]
        found = np.zeros((len(part.groups), batch.rows))

        def of_rows(rows: slice) -> None:
            response = self._response(batch.part(rows), advance)
            lost = response.base_values.double() - joint_values(response, part.groups).double()
            response.require_same_as(plain.part(rows))
            found[:, rows] = lost.cpu().numpy()

        with self.cost.stage(JOINT):
            self.portions.run(batch.rows, of_rows)
        return found

    def _response(self, batch: Batch, advance: Callable[[int], object]) -> Response:
        setting = self.run.setting
        return Response(
            setting.model, batch, setting.metric, setting.components,
            source=self.source, memory=setting.memory, cost=self.cost, advance=advance,
        )  # fmt: skip

    def derivatives(self) -> tuple[np.ndarray, np.ndarray]:
        """(C, n) and (C, C, n): first and second derivatives of the loss in the strengths of the ablations, at 0.

        Raises:
            OptionError: there would be too many numbers, or the metric has no gradient.
        """
        count, n = len(self.components), len(self.run.pairs)
        if count * count * n > MOST_NUMBERS:
            raise OptionError(
                f"{count} components on {n} examples have {count * count * n:.2g} second derivatives. Use fewer "
                f"examples (at most {MOST_NUMBERS // count**2}) or fewer components (--sites)."
            )

        def compute(response: Response) -> np.ndarray:
            slopes, second = joint_derivatives(response)
            both: np.ndarray = -torch.cat([slopes, second.flatten(0, 1)]).cpu().numpy()
            return both

        found = self._over_rows("second order", count + count * count, count, compute)
        return found[:count], found[count:].reshape(count, count, n)

    def _over_rows(self, name: str, outputs: int, sweeps: int, compute: Callable[[Response], np.ndarray]) -> np.ndarray:
        """(outputs, n) of values (outputs, R) that ``compute`` gives, summed over each example's rows."""
        cost = self.cost
        found = np.zeros((len(self.run.pairs), outputs))
        total = sweeps * sum(batch.rows for batch, _ in self.measured)
        with progress_of(name, total, 0, self.show) as advance, cost.stage(name):
            for batch, plain in self.measured:

                def of_rows(part: slice, batch: Batch = batch, plain: PlainRuns = plain) -> None:
                    response = self._response(batch.part(part), advance)
                    values = compute(response)
                    response.require_same_as(plain.part(part))
                    np.add.at(found, response.batch.examples.cpu().numpy(), values.T)

                self.portions.run(batch.rows, of_rows)
        return self._finite(found)

    def _finite(self, found: np.ndarray) -> np.ndarray:
        if not np.isfinite(found).all():
            name = self.run.setting.metric.name
            raise InterventionError(f"{name} is not finite after an ablation; check the weights.")
        return found.T


@contextmanager
def ablated_runs(
    method: Method,
    model: Model,
    pairs: AnyPairs,
    *,
    sites: AnySites = DEFAULT_SITES,
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
    jobs: Jobs = None,
    **options: Unpack[CommonOptions],
) -> Iterator[AblatedRuns]:
    """Hold a model and its clean prompts; arguments as in `assay.measure`, ``method`` as `group_ablation` gives."""
    given: dict[str, Any] = {
        "method": method, "pairs": pairs, "sites": sites, "mean": mean, "reference": reference, "seed": seed, **options,
    }  # fmt: skip
    with prepared(
        method, model, pairs, sites=sites, mean=mean, reference=reference, seed=seed, jobs=jobs, **options
    ) as run:  # fmt: skip
        cost = CostMeter()
        baseline, measured = run.measure_baseline(cost, by_start=False, force=force)
        assert method.source is not None
        with cost.stage("source"):
            source = method.source(replace(run.setting, cost=cost))
        yield AblatedRuns(run, baseline, measured, cost, progress, source, {**given, "force": force}, jobs is not None)


def can_differentiate(model: Model, metric: Metric) -> bool:
    """Whether second derivatives of this metric at the clean run say anything."""
    whole = model.dtype.itemsize >= 4 and model.quantisation is None
    return metric.differentiable and not metric.compares_with_clean and whole


# A group, in numbers


@dataclass(frozen=True)
class Ratio:
    """Of two means over examples, with a 95 % bootstrap interval; without numbers where the lower one is noise."""

    value: float | None
    lower: float | None = None
    upper: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "not told: the singles are within noise (of one prompt, any are)"
        return f"{self.value:.3g} ({self.lower:.3g} to {self.upper:.3g})"


@dataclass(frozen=True, eq=False)
class GroupEffect:
    """k components ablated alone and together."""

    names: tuple[str, ...]
    single: np.ndarray
    """(k, n) losses."""
    joint: np.ndarray
    """(n,) loss."""
    first_order: float | None = None
    """Mean predicted joint loss: the sum of first derivatives."""
    second_order: float | None = None
    """The same and half of all second derivatives among the group."""
    seed: int = 0

    @property
    def over_mean_single(self) -> Ratio:
        """Joint loss over the mean loss of one of them: what arXiv 2602.01442 calls superadditivity."""
        return ratio(self.joint, self.single.mean(0), self.seed)

    @property
    def over_sum_of_singles(self) -> Ratio:
        """Joint loss over the sum of single losses: above 1, superadditive proper."""
        return ratio(self.joint, self.single.sum(0), self.seed)

    def summary(self) -> dict[str, Any]:
        """Means over examples with standard errors, and both ratios."""
        return {
            "components": list(self.names),
            "joint": spread(self.joint),
            "mean_single": spread(self.single.mean(0)),
            "sum_of_singles": spread(self.single.sum(0)),
            "joint_over_mean_single": vars(self.over_mean_single),
            "joint_over_sum_of_singles": vars(self.over_sum_of_singles),
            "predicted_first_order": self.first_order,
            "predicted_second_order": self.second_order,
        }


def spread(values_n: np.ndarray) -> dict[str, float | None]:
    """Mean and standard error over examples."""
    n = len(values_n)
    return {"mean": float(values_n.mean()), "stderr": float(values_n.std(ddof=1) / n**0.5) if n > 1 else None}


def ratio(above_n: np.ndarray, below_n: np.ndarray, seed: int = 0, draws: int = 2000) -> Ratio:
    """mean(above) / mean(below) over examples, and what other draws of these examples give.

    Refused, with all fields None, where one draw in a thousand gives mean(below) another sign, or 0: the ratio then has
    no finite interval.
    """
    n = len(below_n)
    if n < 2:
        return Ratio(None)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n
    above, below = weights @ above_n, weights @ below_n
    whole = below_n.mean()
    same = np.sign(below) == np.sign(whole)
    if whole == 0 or (~same).mean() > 0.001:
        return Ratio(None)
    lower, upper = np.quantile(above[same] / below[same], [0.025, 0.975])
    return Ratio(float(above_n.mean() / whole), float(lower), float(upper))
