"""What a method declares, and the one loop that runs any of them over prompts and components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from assay.data.baseline import Baseline
from assay.data.encoding import Align, Row
from assay.data.metrics import Metric
from assay.data.pairs import PromptPairs
from assay.data.readers import AnyPairs as AnyPairs
from assay.engine.batches import DEFAULT_MEMORY, Direction
from assay.engine.cost import CostMeter
from assay.engine.response import Response, Source
from assay.engine.sources import MeanOver
from assay.methods.plan import describe_cut, make_plan
from assay.methods.preparation import prepared
from assay.methods.sharded import Computer, require_finished
from assay.model import Model, RuleSet, rule_set
from assay.model.backward import PLAIN
from assay.scores import Scores
from assay.sites import AnySites, Component, Selection, describe
from assay.store import RunFolder

DEFAULT_SITES = "heads,mlps"


@dataclass(frozen=True)
class Setting:
    """What a method may need besides the response."""

    model: Model
    rows: list[Row]
    components: Selection
    metric: Metric
    seed: int
    mean: MeanOver
    reference: PromptPairs | None
    memory: int
    cost: CostMeter
    align: Align = "reject"


def no_backward_pass(components: Sequence[Component], layers: int) -> int:
    return 0


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
    """The values stand for the effect of patching the component alone."""
    has_unit: bool = True
    """The values are in the metric's unit."""
    signed: bool = True
    by_component: bool = False
    """Each component costs passes of its own and its value does not depend on which others are asked for, so they
    may be computed in blocks, in any order."""
    sweeps: int = 1
    """How many times it asks the response for all components; of use for telling the progress."""
    outputs: int = 1
    """Values of every component: ``compute`` gives (outputs * C, R), one table below the other. More than one is of use
    inside assay only; such methods are in no list."""
    uses_gradients: bool = False
    through_layers: bool = True
    """If it uses gradients: through the layers, not the unembedding alone."""
    rules: RuleSet = PLAIN
    """What its gradients follow; see `under`."""
    uses_reference: bool = False
    """Takes activations from reference prompts."""
    uses_means: bool = False
    """Averages them."""
    source: Callable[[Setting], Source] | None = None
    kinds: tuple[str, ...] = ()
    """The only kinds of sites it is defined for; any if empty."""
    takes_model_apart: bool = False
    """Adds up contributions by the model's weights, so hooks that change them in between would be missed."""
    check: Callable[[Setting], object] | None = None
    """Refuses, before anything has run, what needs no forward pass to be refused."""
    at_positions: bool = True
    """Whether sites may be narrowed to positions."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """What ``configure`` was called with."""
    configure: Callable[..., Method] | None = None
    """Makes the method with other parameters: its keyword arguments, by the names of the command line's options."""
    second_order: bool = False
    """Takes second derivatives, so half precision is refused."""
    backward_passes: Callable[[Sequence[Component], int], int] = no_backward_pass
    """For all these components of a model of so many layers: the unit of cost in arXiv 2606.09899, where the product of
    a Hessian with a vector is two."""

    @property
    def parameters(self) -> dict[str, str]:
        """What else determines the numbers, as it is stored with the run."""
        given = {name: value for name, value in self.arguments.items() if value is not None}
        return {name: describe(value) if isinstance(value, Selection) else str(value) for name, value in given.items()}

    def __reduce__(self) -> Any:
        """Sent to another process by name, where it is one of assay's; else as it is."""
        from assay.methods.registry import METHODS, method_named

        if METHODS.get(self.name) is self:
            return method_named, (self.name,)
        if self.configure is not None and self._is_made_by(self.configure):
            return _configured, (self.configure, self.arguments)
        return _of_fields, (vars(self),)

    def _is_made_by(self, configure: Callable[..., Method]) -> bool:
        """Whether nothing was replaced since: functions made anew are the same if their code is."""
        again = configure(**self.arguments)
        return all(_code_of(value) == _code_of(vars(again)[name]) for name, value in vars(self).items())

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("ablation",) if self.source is not None else ("denoise", "noise")


def under(method: Method, rules: str | RuleSet) -> Method:
    """The method with its gradients under backward rules; but for ``plain``, it is then no estimate of the effect.

    Raises:
        OptionError: unknown rules.
    """
    chosen = rule_set(rules)
    if chosen.is_plain:
        return method
    return replace(method, rules=chosen, estimates_effect=False, arguments={**method.arguments, "rules": chosen})


def _code_of(value: Any) -> Any:
    while isinstance(value, partial):
        value = value.func
    return getattr(value, "__code__", value)


def _of_fields(fields: dict[str, Any]) -> Method:
    return Method(**fields)


def _configured(configure: Callable[..., Method], arguments: dict[str, Any]) -> Method:
    return configure(**arguments)


class CommonOptions(TypedDict, total=False):
    """Options of whatever runs a model on prompts; see `measure`."""

    metric: str | Metric | None
    direction: Direction | None
    memory: str
    align: Align
    chat: bool


class MeasureOptions(CommonOptions, total=False):
    """Options that every method takes; see `measure`."""

    sites: AnySites
    seed: int
    mean: MeanOver | None
    reference: AnyPairs | None
    skip: bool
    force: bool
    progress: bool
    jobs: int | None
    run_folder: str | Path | RunFolder | None


def measure(
    method: Method | str,
    model: Model,
    pairs: AnyPairs,
    *,
    sites: AnySites = DEFAULT_SITES,
    metric: str | Metric | None = None,
    direction: Direction | None = None,
    memory: str = DEFAULT_MEMORY,
    seed: int = 0,
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    align: Align = "reject",
    chat: bool = False,
    skip: bool = True,
    force: bool = False,
    progress: bool = False,
    jobs: int | None = None,
    run_folder: str | Path | RunFolder | None = None,
    on_baseline: Callable[[Baseline, Metric, str], None] = lambda baseline, metric, why: None,
) -> Scores:
    """Run a method for every component of the given sites on every pair.

    Args:
        method: a name (``assay list methods``) or a `Method`.
        pairs: prompt pairs, a list of them or of dictionaries, or a path or name that `assay.read_pairs` reads.
        sites: a phrase such as ``heads[8:24]@last,mlps`` (``assay list sites``), or a selection of `assay.sites`.
        metric: see ``assay list metrics``, or an `assay.Metric` of your own; the task's own if None.
        direction: ``denoise`` (default; the corrupted run is patched with clean activations) or ``noise``
            (the clean run is patched with corrupted ones). Ablations take none.
        memory: what patched sequences and recordings may take beyond the weights, such as ``2G``.
        seed: of methods that draw.
        mean: for mean ablation: per ``position`` (default) or over ``all-positions``.
        reference: for mean and resample ablation: pairs whose corrupted prompts activations are taken from; the
            run's own if None.
        align: of prompts of unequal token length: ``reject`` them (default), ``skip`` such pairs (the result's
            ``pairs`` are the others, its ``pairs.options["dropped"]`` counts them), ``pad`` the shorter in front with
            tokens that are attended to, or keep the ``last-k`` tokens of both.
        chat: render each prompt through the model's chat template, up to where the answer begins.
        skip: leave out what is known to change nothing.
        force: go on although the model cannot tell clean from corrupted.
        progress: say on standard error how far the run is: a bar on a terminal, a line now and then elsewhere.
        jobs: compute in so many processes of one thread each (1: here, with one thread); here, with torch's own
            threads, if None. ``memory`` is for each. More than one needs a model that `assay.load` loaded by name.
        run_folder: where to keep the run. What is finished is kept from moment to moment, so the same call goes on
            after any interruption, with the same result to the byte; on a finished folder it reads the result.
        on_baseline: called once the unpatched prompts have been run, with the metric and why it was chosen.

    Raises:
        OptionError: an option that does not exist or does not fit the others.
        DataError: prompts that cannot be used, or that the model does not tell apart.
        ModelError: a model that is not ready (training mode, autocast) or lacks a site.
        InterventionError: assay's run of the model is not the model's own, or a patch did not fire.
        StoreError: the run folder is in use, is of another configuration, or cannot be written.
        WorkerError: two worker processes died over one piece of the work.
    """
    if isinstance(method, str):
        from assay.methods.registry import method_named

        method = method_named(method)
    with prepared(
        method,
        model,
        pairs,
        sites=sites,
        metric=metric,
        direction=direction,
        memory=memory,
        seed=seed,
        mean=mean,
        reference=reference,
        align=align,
        chat=chat,
        skip=skip,
        jobs=jobs,
        run_folder=run_folder,
    ) as run:
        if run.folder is not None and run.folder.is_finished:
            require_finished(run.folder, run.configuration)
            return Scores.load(run.folder.path)
        cost = CostMeter()
        baseline, measured = run.measure_baseline(cost, by_start=method.by_component, force=force, then=on_baseline)
        shards = make_plan(
            model, run.setting.components, [batch for batch, _ in measured], by_component=method.by_component
        )
        if run.folder is not None:
            run.folder.begin(run.plan(**describe_cut(run.setting.components, shards)))
        computer = Computer(run, measured, cost, by_start=method.by_component, show=progress)
        (values,) = computer.values(method, shards)
        scores = Scores(
            components=tuple(run.setting.components),
            values=values,
            pairs=run.pairs,
            method=method.name,
            direction=run.direction,
            metric=run.setting.metric.name,
            unit=run.setting.metric.unit if method.has_unit else "none",
            exact=method.exact,
            estimates_effect=method.estimates_effect,
            signed=method.signed,
            baseline=baseline,
            cost=cost.summary(run.layer_tokens),
            configuration=run.configuration,
            provenance=run.provenance(method.source_note),
        )
        if run.folder is not None and run.folder is not run_folder:
            scores.save(run.folder)
    return scores


def effect(response: Response, _: Setting) -> Tensor:
    """g(1) - g(0) by intervention."""
    return response.value(1) - response.base_values
