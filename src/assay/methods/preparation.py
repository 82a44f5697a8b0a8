"""All that is settled before anything is computed: options, prompts, components, and what makes two runs the same."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from assay.data.baseline import Baseline
from assay.data.chat import as_chat
from assay.data.encoding import Align, Row, default_metric, encode, require_align
from assay.data.equal_lengths import equal_lengths
from assay.data.metrics import Metric, as_metric
from assay.data.pairs import PromptPairs
from assay.data.readers import AnyPairs, as_pairs
from assay.engine.baseline import PlainRuns, measure_baseline
from assay.engine.batches import DEFAULT_MEMORY, Batch, Direction, make_batches, parse_memory, recording_bytes
from assay.engine.cost import CostMeter
from assay.engine.graph import require_precision
from assay.engine.response import Response
from assay.engine.savings import EVERY_SAVING, NO_SAVING
from assay.engine.sources import MeanOver
from assay.errors import DataError, ModelError, OptionError
from assay.methods.own_code import own_code
from assay.methods.provenance import describe_environment, describe_model, what_rounds
from assay.methods.requirements import (
    require_defined,
    require_direction,
    require_gradient,
    require_mean,
    require_plain_weights,
    require_reference,
    require_rules,
)
from assay.methods.sharded import Jobs, opened, processes_of_run, require_jobs, threads_of_run
from assay.model import Model
from assay.model.attention import exclusive
from assay.model.backward import installed, require_no_other_rules
from assay.scale import Crew
from assay.sites import AnySites, Selection, describe, select
from assay.store import RunFolder

if TYPE_CHECKING:
    from assay.methods.method import Method, Setting


@dataclass(frozen=True)
class Prepared:
    """A run of which everything is known but its numbers."""

    method: Method
    setting: Setting
    pairs: PromptPairs
    direction: Direction
    skip: bool
    processes: Crew | None
    metric_chosen_because: str
    memory: str
    configuration: dict[str, Any]
    """What determines the numbers, as it is stored with the run."""
    folder: RunFolder | None
    recorded: list[Response] = field(default_factory=list)
    """Batch by batch, the runs that the baseline was read from; empty where there were none to keep."""
    went_on: bool = False
    """Whether something of it was kept from before."""
    began: float = field(default_factory=time.perf_counter)

    @property
    def model(self) -> Model:
        return self.setting.model

    @property
    def layer_tokens(self) -> int:
        """Of one plain pass of all prompts: a forward-equivalent."""
        return sum(len(row.clean) for row in self.setting.rows) * self.model.n_layers

    def measure_baseline(
        self,
        cost: CostMeter,
        *,
        by_start: bool,
        force: bool,
        then: Callable[[Baseline, Metric, str], object] = lambda baseline, metric, why: None,
    ) -> tuple[Baseline, list[tuple[Batch, PlainRuns]]]:
        """Run the unpatched prompts.

        Args:
            by_start: see `assay.engine.batches.make_batches`.
            force: go on although the model cannot tell clean from corrupted.
            then: called with the baseline, the metric and why it was chosen.

        Returns:
            The baseline, and the batches with their plain logits.

        Raises:
            DataError: the model does not tell clean from corrupted prompts.
        """
        model, metric = self.model, self.setting.metric
        if self.processes is not None and model.load_again is not None:
            self.processes.start()
        batches = make_batches(model, self.setting.rows, self.direction, self.setting.memory, by_start=by_start)
        with cost.stage("baseline"):
            recorded = partial(self._record, cost) if self._may_record(batches) else None
            baseline, batches, plain = measure_baseline(
                model, batches, self.direction, len(self.pairs), metric, cost, recorded
            )
        then(baseline, metric, self.metric_chosen_because)
        if not baseline.tells_apart and not force:
            raise DataError(
                f"{model.name} does not tell clean from corrupted prompts on {self.pairs.title}: {metric.name} is "
                f"{baseline.clean.mean():.4g} on clean and {baseline.corrupted.mean():.4g} on corrupted prompts "
                f"(difference {baseline.difference:.3g}, standard error {baseline.difference_stderr:.2g}). There is no "
                "behaviour to attribute. Use --force (in Python: force=True) to go on all the same."
            )
        return baseline, list(zip(batches, plain, strict=True))

    def _may_record(self, batches: Sequence[Batch]) -> bool:
        """Whether the baseline can be read from the runs that the method needs anyway, and these be kept for it."""
        ablates = self.method.source is not None
        needed = sum(recording_bytes(self.model, batch.positions) * batch.rows for batch in batches)
        fits = needed <= self.setting.memory
        return fits and not (ablates or self.setting.metric.compares_with_clean or self.model.has_foreign_hooks)

    def _record(self, cost: CostMeter, batch: Batch) -> Response:
        setting, savings = self.setting, EVERY_SAVING if self.skip else NO_SAVING
        response = Response(
            self.model, batch, setting.metric, setting.components, savings=savings, memory=setting.memory, cost=cost
        )
        self.recorded.append(response)
        return response

    def plan(self, **cut: Any) -> dict[str, Any]:
        """Whatever decides the bytes of the result, for `assay.store.RunFolder.begin`.

        Args:
            cut: what the run is cut into.
        """
        environment = describe_environment(self.model)
        return {
            **self.configuration,
            "tokenizer_sha256": self.model.tokenizer_hash,
            "memory": self.setting.memory,
            "threads": environment["threads"],
            "versions": environment["versions"],
            "machine": what_rounds()["machine"],
            "matmul_precision": torch.get_float32_matmul_precision(),
            **cut,
        }

    def spent(self, cost: CostMeter) -> dict[str, Any]:
        """What it cost, as it is stored with the run."""
        processes = self.processes.processes if self.processes is not None else 1
        clock = {"seconds": round(time.perf_counter() - self.began, 3), "processes": processes, "went_on": self.went_on}
        return {**cost.summary(self.layer_tokens), "clock": clock}

    def provenance(self, source_note: str) -> dict[str, Any]:
        """What was run on what, as it is stored with the run."""
        return {
            "model": describe_model(self.model, self.configuration["model"]["weights_sha256"]),
            **describe_environment(self.model),
            "memory": self.memory,
            "metric": {"unit": self.setting.metric.unit, "description": self.setting.metric.description},
            "metric_chosen_because": self.metric_chosen_because,
            "answer_tokens": sorted({len(row.tokens) for row in self.setting.rows}),
            "method_source": source_note,
        }


@contextmanager
def prepared(
    method: Method,
    model: Model,
    pairs: AnyPairs,
    *,
    sites: AnySites,
    metric: str | Metric | None = None,
    direction: Direction | None = None,
    memory: str = DEFAULT_MEMORY,
    seed: int = 0,
    mean: MeanOver | None = None,
    reference: AnyPairs | None = None,
    align: Align = "reject",
    chat: bool = False,
    skip: bool = True,
    jobs: Jobs = None,
    run_folder: str | Path | RunFolder | None = None,
) -> Iterator[Prepared]:
    """Settle everything, and hold model, folder and threads while the run lasts; see `assay.measure`."""
    from assay.methods.method import Setting

    if not isinstance(model, Model):
        raise OptionError(f"The model must be an assay.Model, as assay.load gives, not {type(model).__name__}.")
    pairs = settled(model, pairs, align, chat, seed)
    references = None if reference is None else settled(model, reference, align, chat, seed)
    chosen, why = default_metric(model, pairs) if metric is None else (as_metric(metric), "asked for")
    direction = require_direction(method, direction)
    require_gradient(method, chosen, direction)
    mean = require_mean(method, mean)
    require_reference(method, reference is not None)
    require_rules(method)
    budget = parse_memory(memory)
    require_jobs(jobs)
    with (
        exclusive(model.hf),
        opened(run_folder) as folder,
        threads_of_run(jobs, folder),
        processes_of_run(jobs, model) as processes,
    ):
        model.require_ready()
        require_no_other_rules(model, method.rules, method.name)
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
        if method.takes_model_apart:
            model.require_one_device(method.name)
        setting = Setting(model, rows, components, chosen, seed, mean, references, budget, CostMeter(), align)
        configuration: dict[str, Any] = {
            "model": {
                "name": model.name,
                "weights_sha256": model.weight_hash,
                "adapters": model.adapters,
                "quantisation": model.quantisation,
            },
            "task": {"name": pairs.task, "n": len(pairs), **pairs.options},
            "prompts_sha256": _hash(pairs.to_records()),
            "method": method.name,
            **method.parameters,
            **describe_rules(method),
            "sites": describe(sites),
            "metric": chosen.name,
            "metric_function": f"{chosen.row_values.__module__}.{chosen.row_values.__qualname__}",
            "direction": direction,
            "seed": seed,
            "mean": mean if method.uses_means else None,
            "reference_sha256": None if references is None else _hash(references.to_records()),
            "align": align,
            "chat": chat,
            "model_configuration_sha256": model.configuration_hash,
            "own_code_sha256": [own_code(function) for function in (chosen.row_values, method.compute)],
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "skip": skip,
        }
        if folder is not None:
            _require_no_hooks(model)
        if method.check is not None and not (folder is not None and folder.is_finished):
            method.check(setting)
        went_on = folder is not None and folder.kept > 0
        with installed(model, method.rules):
            yield Prepared(
                method, setting, pairs, direction, skip, processes, why, memory, configuration, folder, went_on=went_on
            )


def settled(model: Model, pairs: AnyPairs, align: Align, chat: bool, seed: int = 0) -> PromptPairs:
    """The pairs as they will be run: read, those of unequal length left out under ``skip``, in the chat template.

    Raises:
        OptionError: an unknown alignment, or one that cuts into a chat template.
        DataError: prompts that cannot be used.
    """
    require_align(align)
    if chat and align in ("pad", "last-k"):
        raise OptionError(f"--align {align} would cut into a chat template's own tokens; use it without --chat.")
    found = as_pairs(pairs, model, seed)
    if align == "skip":
        found = equal_lengths(model, found, chat=chat)
    return as_chat(model, found) if chat else found


def describe_rules(method: Method) -> dict[str, Any]:
    """The backward rules by name and written out, as they are stored with the run; nothing of the derivative."""
    return {} if method.rules.is_plain else {"rules": str(method.rules), "backward_rules": asdict(method.rules)}


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


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _require_no_hooks(model: Model) -> None:
    """Refuse to keep a run whose model is not described by its weights and configuration."""
    if model.has_foreign_hooks:
        raise ModelError(
            f"Hooks or replaced forward methods sit on {model.name}, and they cannot be told apart from one sitting to "
            "the next. Remove them, or leave the run folder out and save the scores."
        )
