"""Compensation between components: what later parts of the model do about a head that is ablated.

Ablated in the clean run, a head takes ``total`` from the metric. Its *direct* effect is what its change makes at the
unembedding with everything between left alone and every norm on the way frozen. The difference, direct - total, is
what the rest makes of the loss: part of it norms alone, which are rescaled when the head is gone, the rest components
after it that now compute something else. Of the direct effect's sign it is repair; of the other it is the indirect
effect, what later components make of the head while it is there. One number cannot tell the two apart where both occur
(McGrath et al., arXiv 2307.15771; Rushing and Nanda, arXiv 2402.15390).

Axes: C heads, n prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from assay.data.baseline import standard_error
from assay.engine.cost import CostMeter
from assay.engine.paths import PathPatch, Receivers
from assay.engine.response import Response
from assay.engine.sources import MeanOver
from assay.interactions.spread import ratio
from assay.methods.direct_effect import direct
from assay.methods.method import AnyPairs, CommonOptions, Method, Setting, effect
from assay.methods.plan import make_plan
from assay.methods.preparation import prepared
from assay.methods.registry import ablation_named
from assay.methods.sharded import Computer
from assay.model import Model
from assay.sites import AnySites, Component

SOURCE = "McGrath et al., arXiv 2307.15771; Rushing and Nanda, arXiv 2402.15390"
SMALL = 0.1
"""Direct effects below this share of the largest have no share that was repaired: it would divide by nearly 0."""


@dataclass(frozen=True, eq=False)
class Compensation:
    """Of C heads on n prompts, what the metric loses; (C, n) in the metric's unit, positive: the head helps."""

    components: tuple[Component, ...]
    ablation: str
    direct: np.ndarray
    """By the head's own change at the unembedding, norms frozen, the metric linear."""
    rescaled: np.ndarray
    """By the same change with norms computed anew, and the metric as it is."""
    total: np.ndarray
    """By the whole model run again."""
    metric: str
    unit: str
    cost: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)

    @property
    def by_norms(self) -> np.ndarray:
        """(C, n) what norms repair (with a metric that is not linear in the logits, its curvature too)."""
        repaired: np.ndarray = self.direct - self.rescaled
        return repaired

    @property
    def by_components(self) -> np.ndarray:
        """(C, n) what later components give back; negative where they lose, too, what they made of the head."""
        repaired: np.ndarray = self.rescaled - self.total
        return repaired

    def to_pandas(self) -> pd.DataFrame:
        """One row per head: means over prompts, the standard error of what was repaired, and its share of the direct
        effect with its 95 % interval over prompts (NaN where the direct effect is small or not told from 0; the
        interval alone, with few prompts)."""
        repaired, large = self.direct - self.total, self.has_direct_effect
        examples = np.arange(self.direct.shape[1])
        shares = []
        for above, below, enough in zip(repaired, self.direct, large, strict=True):
            found, interval = ratio(above, below, examples, len(examples)) if enough else (None, None)
            shares.append([np.nan if found is None else found, *(interval or [np.nan, np.nan])])
        return pd.DataFrame(
            {
                "component": [component.name for component in self.components],
                "layer": [component.layer for component in self.components],
                "head": [component.unit for component in self.components],
                "direct": self.direct.mean(1),
                "by_norms": self.by_norms.mean(1),
                "by_components": self.by_components.mean(1),
                "total": self.total.mean(1),
                "repaired": repaired.mean(1),
                "stderr_repaired": [standard_error(values) for values in repaired],
                **{
                    name: [each[i] for each in shares] for i, name in enumerate(("share", "share_lower", "share_upper"))
                },
            }
        )

    @property
    def has_direct_effect(self) -> np.ndarray:
        """(C,) bool: a mean direct effect above a tenth of the largest."""
        direct = np.abs(self.direct.mean(1))
        large: np.ndarray = direct > SMALL * direct.max(initial=0.0)
        return large

    def summary(self) -> dict[str, Any]:
        """Over the heads that have a direct effect: the share of it that norms and later components repair; a 95 %
        interval over prompts."""
        large, n = self.has_direct_effect, self.direct.shape[1]
        sign = np.sign(self.direct.mean(1, keepdims=True))[large]
        whole = (sign * self.direct[large]).sum(0)

        def share(values: np.ndarray) -> float | None:
            return float((sign * values[large]).sum() / whole.sum()) if large.any() else None

        repaired, interval = ratio((sign * (self.direct - self.total)[large]).sum(0), whole, np.arange(n), n)
        return {
            "ablation": self.ablation,
            "prompts": n,
            "heads": len(self.components),
            "heads_with_direct_effect": int(large.sum()),
            "repaired_by_norms": share(self.by_norms),
            "repaired_by_components": share(self.by_components),
            "repaired": repaired,
            "repaired_interval": interval,
        }

    def top(self, k: int = 10) -> pd.DataFrame:
        """The heads of largest direct effect."""
        return self.to_pandas().sort_values("direct", key=abs, ascending=False, kind="stable").head(k)

    def per_example(self) -> pd.DataFrame:
        """One row per head and prompt."""
        count, n = self.direct.shape
        return pd.DataFrame(
            {
                "layer": np.repeat([component.layer for component in self.components], n),
                "head": np.repeat([component.unit for component in self.components], n),
                "example": np.tile(np.arange(n), count),
                **{name: getattr(self, name).reshape(-1) for name in ("direct", "rescaled", "total")},
            }
        )


def compensation(
    model: Model,
    pairs: AnyPairs,
    *,
    ablation: str = "zero",
    sites: AnySites = "heads",
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
    **options: Unpack[CommonOptions],
) -> Compensation:
    """Ablate each head in the clean run, and hold the whole effect against the direct one.

    Args:
        ablation: ``zero``, ``mean`` or ``resample``: what the head is set to.
        sites: which heads, such as ``heads[8:24]``.
        mean, reference, seed, force, progress: as in `assay.measure`.
        options: ``metric, memory, align, chat``, as in `assay.measure`.

    Raises:
        OptionError: an unknown ablation, or sites other than heads.
        AssayError: as `assay.measure`.
    """
    method = ablation_method(ablation)
    with prepared(
        method, model, pairs, sites=sites, mean=mean, reference=reference, seed=seed, **options
    ) as run:  # fmt: skip
        cost = CostMeter()
        _, measured = run.measure_baseline(cost, by_start=True, force=force)
        shards = make_plan(model, run.setting.components, [batch for batch, _ in measured], by_component=True)
        values = Computer(run, measured, cost, by_start=True, show=progress).values(method, shards)
        total, rescaled, direct_effects = -values
        return Compensation(
            components=tuple(run.setting.components),
            ablation=ablation,
            direct=direct_effects,
            rescaled=rescaled,
            total=total,
            metric=run.setting.metric.name,
            unit=run.setting.metric.unit,
            cost=cost.summary(run.layer_tokens),
            configuration=run.configuration,
        )


def ablation_method(ablation: str) -> Method:
    """The ablation of this name, giving total, rescaled and direct effect of each head.

    Raises:
        OptionError: there is none.
    """
    return replace(
        ablation_named(ablation),
        name=f"compensation ({ablation}-ablation)",
        source_note=SOURCE,
        compute=_three_effects,
        outputs=3,
        sweeps=3,
        kinds=("heads",),
        uses_gradients=True,
        through_layers=False,
        takes_model_apart=True,
        at_positions=False,
    )


def _three_effects(response: Response, setting: Setting) -> Tensor:
    rescaled = PathPatch(response, Receivers((), logits=True)).values() - response.base_values
    return torch.cat([each.double() for each in (effect(response, setting), rescaled, direct(response, setting))])
