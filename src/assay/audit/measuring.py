"""The audit: gradient magnitude and its rivals against causal losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from assay.audit.gradient_magnitude import MLP_WEIGHTS, WeightGradients
from assay.audit.pruning import PRUNED_EXAMPLES, prune
from assay.audit.result import BEYOND, WITHIN, Audit, AuditedSet
from assay.audit.rivals import RIVALS, rival_named
from assay.data.encoding import default_metric
from assay.data.metrics import METRICS, Metric, as_metric
from assay.data.pairs import PromptPairs
from assay.data.tasks.sequences import TRANSFORMATIONS
from assay.engine.cost import CostMeter
from assay.engine.joint import KINDS_OF_GROUPS
from assay.engine.sources import MeanOver, zeros
from assay.errors import OptionError, instead_of
from assay.interactions.joint_ablation import can_differentiate, group_ablation
from assay.methods.attribution_patching import METHOD as ATTRIBUTION_PATCHING
from assay.methods.method import DEFAULT_SITES, AnyPairs, CommonOptions, measure
from assay.methods.preparation import prepared, settled
from assay.methods.progress import progress_of
from assay.methods.registry import METHODS
from assay.methods.requirements import require_mean, require_reference
from assay.methods.sharded import Jobs
from assay.model import Model
from assay.scores import Scores
from assay.sites import AnySites

SOURCE = "Ye, arXiv 2602.01442"
BATCHES, RIVAL_EXAMPLES = 50, 200

# What `prepared` needs to know: weights with gradients, on the clean prompts. Nothing is patched by it.
_MAGNITUDE = replace(
    ATTRIBUTION_PATCHING, name="gradient-magnitude", source=lambda _: zeros, kinds=KINDS_OF_GROUPS, at_positions=False
)


@dataclass(frozen=True)
class Choices:
    """What an audit measures; see `audit_gradients`.

    Raises:
        OptionError: a choice that does not exist, or a number that makes no sense.
    """

    ablation: str = "mean"
    rivals: tuple[str, ...] = RIVALS
    rival_examples: int = RIVAL_EXAMPLES
    batches: int = BATCHES
    mlp_weights: str = "output"
    pruned_examples: int = PRUNED_EXAMPLES

    def __post_init__(self) -> None:
        group_ablation(self.ablation)
        for name in self.rivals:
            rival_named(name, self.ablation)
        if len(set(self.rivals)) < len(self.rivals):
            raise OptionError(f"Each rival is measured once; {', '.join(self.rivals)} names one twice.")
        if self.mlp_weights not in MLP_WEIGHTS:
            raise OptionError(f"--mlp-weights: {instead_of(self.mlp_weights, MLP_WEIGHTS)}")
        for name in ("rival_examples", "batches", "pruned_examples"):
            if (given := getattr(self, name)) < 1:
                raise OptionError(f"--{name.replace('_', '-')} must be at least 1, not {given}.")


def audit_gradients(
    model: Model,
    pairs: AnyPairs,
    *,
    ood: AnyPairs | None = None,
    sites: AnySites = DEFAULT_SITES,
    ablation: str = "mean",
    rivals: Sequence[str] = RIVALS,
    rival_examples: int = RIVAL_EXAMPLES,
    batches: int = BATCHES,
    mlp_weights: str = "output",
    pruning: bool = False,
    pruned_examples: int = PRUNED_EXAMPLES,
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
    jobs: Jobs = None,
    **options: Unpack[CommonOptions],
) -> Audit:
    """Does the size of a component's gradient tell how much the model loses without it?

    Args:
        ood: prompts out of distribution, audited as well; heroes and bloats are then those of these prompts.
        sites: heads and MLPs.
        ablation: ``mean``, ``zero`` or ``resample``.
        rivals: names of `assay.audit.rivals.RIVALS`.
        rival_examples: on the first so many examples.
        batches: gradient magnitude is averaged over so many batches, into which the examples are cut in their order.
        mlp_weights: ``output`` (as in the paper) or ``all`` matrices of an MLP.
        pruning: also ablate components together, in the order of each measure.
        pruned_examples: on the first so many examples.
        mean, reference, seed, force, progress, jobs: as in `assay.measure`. Others than this process share in ablations
            and rivals.
        options: ``metric, memory, align, chat``, as in `assay.measure`. Without a metric, causal losses are those of
            ``exact-match`` for sort and reverse, else of the task's own, in both sets; rivals follow the gradient of
            the same, or of ``log-prob`` where it has none.

    Raises:
        OptionError: a choice that does not exist.
        AssayError: as `assay.measure`.
    """
    choices = Choices(ablation, tuple(rivals), rival_examples, batches, mlp_weights, pruned_examples)
    method = METHODS[f"{ablation}-ablation"]
    require_mean(method, mean)
    require_reference(method, reference is not None)
    align, chat, metric = options.pop("align", "reject"), options.pop("chat", False), options.pop("metric", None)
    if reference is not None:
        reference = settled(model, reference, align, chat, seed)
    common: dict[str, Any] = {"sites": sites, "mean": mean, "seed": seed, "progress": progress, **options}
    common["align"] = "reject" if align == "skip" else align  # prompts are settled once, for all that is measured
    sets, costs, first = [], {}, None
    chosen = _metric(model, settled(model, pairs, align, chat, seed), metric)  # of both sets, whatever the second has
    for name, given in ((WITHIN, pairs), (BEYOND, ood)):
        if given is None:
            continue
        prompts = settled(model, given, align, chat, seed)
        # Written out, so that rivals on fewer examples take the same means.
        others = (reference or prompts) if method.uses_reference else None
        found, scores, cost = _audit_set(model, name, prompts, others, chosen, choices, common, force, jobs)
        sets.append(found)
        costs[name] = cost
        first = first or scores
    assert first is not None
    scores = first
    result = Audit(
        components=tuple(scores.components),
        sets=tuple(sets),
        ablation=ablation,
        mlp_weights=mlp_weights,
        metric=chosen.name,
        unit=scores.unit,
        gradient_metric=_gradient_metric(model, chosen).name,
        cost=costs,
        configuration={
            **scores.configuration,
            **{name: list(value) if isinstance(value, tuple) else value for name, value in vars(choices).items()},
        },
        provenance={**scores.provenance, "method_source": SOURCE},
    )
    if not pruning:
        return result
    pruned = prune(
        model, result, examples=pruned_examples, reference=reference, metric=chosen, mean=mean, seed=seed, force=True,
        progress=progress, **{**options, "align": common["align"]},
    )  # fmt: skip
    return replace(result, pruning=pruned)


def _audit_set(
    model: Model,
    name: str,
    pairs: PromptPairs,
    reference: AnyPairs | None,
    metric: Metric,
    choices: Choices,
    common: dict[str, Any],
    force: bool,
    jobs: Jobs,
) -> tuple[AuditedSet, Scores, dict[str, Any]]:
    exact = replace(METHODS[f"{choices.ablation}-ablation"], kinds=KINDS_OF_GROUPS, at_positions=False)
    scores = measure(exact, model, pairs, metric=metric, reference=reference, force=force, jobs=jobs, **common)
    costs = {"cause": scores.cost}
    magnitude, costs["gradient magnitude"] = gradient_magnitude(
        model, pairs, batches=choices.batches, mlp_weights=choices.mlp_weights,
        **{key: value for key, value in common.items() if key != "mean"},
    )  # fmt: skip
    rivals = {}
    by_gradient = _gradient_metric(model, metric)
    for rival in choices.rivals:
        method = rival_named(rival, choices.ablation)
        found = measure(
            method,
            model,
            pairs[: choices.rival_examples],
            metric=by_gradient,
            reference=reference,
            force=True,
            jobs=jobs,
            **common,
        )
        rivals[rival] = found.sign * found.values
        costs[rival] = found.cost
    audited = AuditedSet(name, pairs, scores.baseline, -scores.values, magnitude, rivals, int(common["seed"]))
    return audited, scores, costs


def gradient_magnitude(
    model: Model,
    pairs: AnyPairs,
    *,
    sites: AnySites = DEFAULT_SITES,
    batches: int = BATCHES,
    mlp_weights: str = "output",
    seed: int = 0,
    progress: bool = False,
    **options: Unpack[CommonOptions],
) -> tuple[np.ndarray, dict[str, Any]]:
    """(C, b) gradient magnitude G of each component and batch, and what it cost; arguments as of `audit_gradients`."""
    with prepared(
        _MAGNITUDE, model, pairs, sites=sites, seed=seed, **_with(options, "log-prob")
    ) as run:  # fmt: skip
        cost, rows = CostMeter(), run.setting.rows
        gradients = WeightGradients(model, run.setting.components, mlp_weights)
        parts = [part for part in np.array_split(np.arange(len(rows)), min(batches, len(rows))) if len(part)]
        found = []
        with progress_of("gradient magnitude", len(rows), 0, progress) as advance, cost.stage("gradient magnitude"):
            for part in parts:
                batch = [rows[number] for number in part.tolist()]
                found.append(gradients.magnitudes(batch, run.setting.memory))
                for row in batch:
                    cost.forward(1, len(row.clean), model.n_layers)
                    cost.backward(1, len(row.clean), model.n_layers)
                advance(len(batch))
        return np.stack(found, axis=1), cost.summary(run.layer_tokens)


def _with(options: CommonOptions, metric: str) -> CommonOptions:
    return {**options, "metric": metric}


def _metric(model: Model, pairs: PromptPairs, metric: str | Metric | None) -> Metric:
    if metric is not None:
        return as_metric(metric)
    return METRICS["exact-match"] if pairs.task in TRANSFORMATIONS else default_metric(model, pairs)[0]


def _gradient_metric(model: Model, metric: Metric) -> Metric:
    return metric if can_differentiate(model, metric) else METRICS["log-prob"]
