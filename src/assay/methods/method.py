"""What a method declares, and the one loop that runs any of them over prompts and components."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from assay.data.baseline import Baseline
from assay.data.chat import as_chat
from assay.data.encoding import Align, Row, default_metric, encode, require_align
from assay.data.equal_lengths import equal_lengths
from assay.data.metrics import Metric, as_metric
from assay.data.pairs import PromptPairs
from assay.data.readers import AnyPairs as AnyPairs
from assay.data.readers import as_pairs
from assay.engine.baseline import measure_baseline
from assay.engine.batches import DEFAULT_MEMORY, Direction, make_batches, parse_memory
from assay.engine.cost import CostMeter
from assay.engine.graph import require_precision
from assay.engine.response import Response, Source
from assay.engine.sources import MeanOver
from assay.errors import DataError, ModelError, OptionError
from assay.methods.own_code import own_code
from assay.methods.provenance import describe_environment, describe_model
from assay.methods.requirements import (
    require_defined,
    require_direction,
    require_gradient,
    require_mean,
    require_plain_weights,
    require_reference,
)
from assay.methods.sharded import (
    compute_values,
    finished_scores,
    opened,
    require_jobs,
    require_no_hooks,
    threads_of_run,
)
from assay.model import Model
from assay.model.attention import exclusive
from assay.scores import Scores
from assay.sites import Component, Selection, describe, select
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
    uses_gradients: bool = False
    through_layers: bool = True
    """If it uses gradients: through the layers, not the unembedding alone."""
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


def _code_of(value: Any) -> Any:
    while isinstance(value, partial):
        value = value.func
    return getattr(value, "__code__", value)


def _of_fields(fields: dict[str, Any]) -> Method:
    return Method(**fields)


def _configured(configure: Callable[..., Method], arguments: dict[str, Any]) -> Method:
    return configure(**arguments)


AnySites = str | Selection | Sequence[str]


class MeasureOptions(TypedDict, total=False):
    """Options that every method takes; see `measure`."""

    sites: AnySites
    metric: str | Metric | None
    direction: Direction | None
    memory: str
    seed: int
    mean: MeanOver | None
    reference: AnyPairs | None
    align: Align
    chat: bool
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
    if not isinstance(model, Model):
        raise OptionError(f"The model must be an assay.Model, as assay.load gives, not {type(model).__name__}.")
    if isinstance(method, str):
        from assay.methods.registry import method_named

        method = method_named(method)
    require_align(align)
    if chat and align in ("pad", "last-k"):
        raise OptionError(f"--align {align} would cut into a chat template's own tokens; use it without --chat.")
    pairs = as_pairs(pairs, model, seed)
    references = None if reference is None else as_pairs(reference, model, seed)
    if align == "skip":
        pairs = equal_lengths(model, pairs, chat=chat)
        references = references and equal_lengths(model, references, chat=chat)
    if chat:
        pairs = as_chat(model, pairs)
        references = references and as_chat(model, references)
    chosen, why = default_metric(model, pairs) if metric is None else (as_metric(metric), "asked for")
    direction = require_direction(method, direction)
    require_gradient(method, chosen, direction)
    mean = require_mean(method, mean)
    require_reference(method, reference is not None)
    budget = parse_memory(memory)
    require_jobs(jobs)
    with exclusive(model.hf), opened(run_folder) as folder, threads_of_run(jobs, folder):
        model.require_ready()
        rows = encode(model, pairs, chosen, align)
        components = _each_position(
            select(model, sites if isinstance(sites, (str, Selection)) else ",".join(sites)), rows
        )
        require_defined(method, components)
        require_plain_weights(method, model)
        if method.second_order:
            require_precision(model)
        if method.takes_model_apart and model.has_foreign_hooks:
            raise ModelError(
                f"{method.name} adds up what components write; hooks or replaced forward methods in {model.name} would "
                "be missed. Remove them, or use activation-patching."
            )
        cost = CostMeter()
        setting = Setting(model, rows, components, chosen, seed, mean, references, budget, CostMeter(), align)
        configuration: dict[str, Any] = {
            "model": {
                "name": model.name,
                "weights_sha256": model.weight_hash,
                "adapters": model.adapters,
                "quantisation": model.quantisation,
            },
            "task": {"name": pairs.task, "n": len(pairs), **pairs.options},
            "prompts_sha256": _hash_of(pairs),
            "method": method.name,
            **method.parameters,
            "sites": describe(sites),
            "metric": chosen.name,
            "metric_function": f"{chosen.row_values.__module__}.{chosen.row_values.__qualname__}",
            "direction": direction,
            "seed": seed,
            "mean": mean if method.uses_means else None,
            "reference_sha256": None if references is None else _hash_of(references),
            "align": align,
            "chat": chat,
            "model_configuration_sha256": model.configuration_hash,
            "own_code_sha256": [own_code(function) for function in (chosen.row_values, method.compute)],
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "skip": skip,
        }
        if folder is not None:
            require_no_hooks(model)
        if folder is not None and folder.is_finished:
            return finished_scores(folder, configuration)
        if method.check is not None:
            method.check(setting)
        batches = make_batches(model, rows, direction, budget, by_start=method.by_component)
        with cost.stage("baseline"):
            baseline, batches, plain = measure_baseline(model, batches, direction, len(pairs), chosen, cost)
        on_baseline(baseline, chosen, why)
        if not baseline.tells_apart and not force:
            raise DataError(
                f"{model.name} does not tell clean from corrupted prompts on {pairs.title}: {chosen.name} is "
                f"{baseline.clean.mean():.4g} on clean and {baseline.corrupted.mean():.4g} on corrupted prompts "
                f"(difference {baseline.difference:.3g}, standard error {baseline.difference_stderr:.2g}). There is no "
                "behaviour to attribute. Use --force (in Python: force=True) to go on all the same."
            )
        values = compute_values(
            method,
            setting,
            list(zip(batches, plain, strict=True)),
            direction,
            skip,
            configuration=configuration,
            folder=folder,
            jobs=jobs,
            cost=cost,
            show=progress,
        )
        scores = Scores(
            components=tuple(components),
            values=values,
            pairs=pairs,
            method=method.name,
            direction=direction,
            metric=chosen.name,
            unit=chosen.unit if method.has_unit else "none",
            exact=method.exact,
            estimates_effect=method.estimates_effect,
            signed=method.signed,
            baseline=baseline,
            cost=cost.summary(sum(len(row.clean) for row in rows) * model.n_layers),
            configuration=configuration,
            provenance={
                "model": describe_model(model),
                **describe_environment(model),
                "memory": memory,
                "metric": {"unit": chosen.unit, "description": chosen.description},
                "metric_chosen_because": why,
                "answer_tokens": sorted({len(row.tokens) for row in rows}),
                "method_source": method.source_note,
            },
        )
        if folder is not None and folder is not run_folder:
            scores.save(folder)
    return scores


def _hash_of(pairs: PromptPairs) -> str:
    return hashlib.sha256(json.dumps(pairs.to_records(), sort_keys=True).encode()).hexdigest()


def _each_position(components: Selection, rows: list[Row]) -> Selection:
    """Components ``at each`` position, written out.

    Raises:
        DataError: the prompts are not of one length, so positions mean different things in each.
    """
    if all(component.position != "each" for component in components):
        return components
    lengths = {row.positions[0] + 1 for row in rows}
    if len(lengths) > 1:
        raise DataError(
            f"The prompts have {min(lengths)} to {max(lengths)} tokens, so a position is not the same place in all of "
            "them. Use prompts of one length for @each, or @last, @first-difference, or an index from the end (@-1)."
        )
    (length,) = lengths
    written = [
        replace(component, position=position)
        for component in components
        for position in (range(length) if component.position == "each" else (component.position,))
    ]
    if len(set(written)) != len(written):
        raise OptionError("The sites name a component at one position twice, once by @each.")
    return Selection(written)


def effect(response: Response, _: Setting) -> Tensor:
    """g(1) - g(0) by intervention."""
    return response.value(1) - response.base_values
