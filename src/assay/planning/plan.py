"""What it would take to ask a model: cost, hours and memory of each method, and which to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from transformers import PretrainedConfig

from assay.data import PromptPairs
from assay.data.encoding import default_metric, encode
from assay.data.metrics import metric_named
from assay.engine.batches import DEFAULT_MEMORY, parse_memory
from assay.engine.graph import require_precision
from assay.errors import OptionError
from assay.methods.method import DEFAULT_SITES, Method
from assay.methods.registry import method_named
from assay.model import Model
from assay.planning.costs import BASELINE, Cost, Workload, cost_of, screening_cost
from assay.planning.made_up import made_up, word_tokenizer
from assay.planning.memory import Placement, parameters, peak_bytes, placements, weight_bytes, working_bytes
from assay.planning.speed import (
    FEWER_LAYERS,
    SLICE_LAYERS,
    kind_of_work,
    measured_baseline,
    measured_seconds,
    seconds_by_rate,
)
from assay.planning.stand_ins import outline, read_configuration, shadow, slice_of
from assay.sites import select

DEFAULT_METHODS = (
    "activation-patching", "attribution-patching", "gim", "hvp-sampled", "hvp", "integrated-gradients",
)  # fmt: skip
SCREEN = "screen"
ESTIMATES = ("hvp-sampled", "attribution-patching")
"""What screening takes its memory for, with and without second derivatives."""
DEFAULT_HOURS = 1.0
MOST_PAIRS = 16
"""That stand for all."""


@dataclass(frozen=True)
class Line:
    """One method's."""

    method: str
    forward_equivalents: float
    seconds: float
    bytes: int
    """Of the whole run at its peak, weights included, on all devices together."""
    backward_passes: float | None
    """For each component: the unit of cost in arXiv 2606.09899."""
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """What it would take."""

    model: str
    family: str
    layers: int
    parameters: int
    dtype: str
    weight_bytes: int
    components: int
    sites: str
    prompts: str
    """What they are, in words."""
    n: int
    positions: int
    shared: int
    """Tokens that a clean and a corrupted prompt begin with alike: the fewest of any pair."""
    speed: str
    """What seconds rest on, in words."""
    lines: tuple[Line, ...]
    placements: tuple[Placement, ...]
    choice: str
    """A method, or ``screen``."""
    why: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"schema": 1, **asdict(self)}


def plan(
    source: str,
    make: Callable[[Model], PromptPairs] | None = None,
    *,
    n: int,
    sites: str = DEFAULT_SITES,
    methods: Sequence[str] | None = None,
    metric: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    revision: str | None = None,
    memory: str = DEFAULT_MEMORY,
    top: int = 10,
    level: float = 0.95,
    probes: int = 8,
    tokens: tuple[int, int] | None = None,
    operations_per_second: float | None = None,
    device_memory: Sequence[int] = (),
    hours: float = DEFAULT_HOURS,
) -> Plan:
    """Foresee what methods would cost on a model of which only the configuration is read.

    Args:
        source: short name, folder with a ``config.json``, or hub id.
        make: makes prompts with a model's tokenizer; of use where there is one.
        n: prompt pairs.
        tokens: length of prompts, and how many tokens clean and corrupted begin with alike, where prompts cannot
            be made.
        operations_per_second: of the machine that will compute; measured here, on a slice of the model with random
            weights, if None.
        methods: by name; `DEFAULT_METHODS` if None, but for those that refuse this dtype.
        device_memory: of each device that weights are spread over, in bytes.
        hours: how long a run may take for the choice.

    Raises:
        ModelError: no configuration, or an architecture that assay refuses.
        OptionError: a value out of range, or no prompts and no ``tokens``.
    """
    if not hours > 0:
        raise OptionError(f"--hours must be above 0, not {hours}.")
    config, tokenizer = read_configuration(source, revision)
    shapes = outline(config, source, dtype)
    if tokens is not None or tokenizer is None or make is None:
        if tokens is None:
            raise OptionError(
                f"{source} has no tokenizer, so its prompts cannot be made. Say how long they are, and how many tokens "
                "clean and corrupted prompt begin with alike, such as --tokens 15:10."
            )
        tokenizer = word_tokenizer()
        pairs, words = made_up([tokens] * min(n, MOST_PAIRS)), f"made-up prompts of {tokens[0]} tokens"
        small = shadow(config, tokenizer, source)
    else:
        small = shadow(config, tokenizer, source)
        pairs = make(small)
        n, words = len(pairs), f"{len(pairs)} pairs of {pairs.title}"
    pairs = pairs[:MOST_PAIRS]
    named = metric or pairs.metric
    chosen_metric = metric_named(named) if named is not None else default_metric(small, pairs)[0]
    rows = {row.example: row for row in encode(small, pairs, chosen_metric)}
    lengths = tuple((len(row.clean), min(row.first_difference, len(row.clean) - 1)) for row in rows.values())
    work = Workload(small, shapes, pairs, lengths, n, sites, metric, parse_memory(memory))
    speed = _Speed(config, shapes, dtype, device, memory, work, operations_per_second)
    size, chosen = weight_bytes(shapes), list(select(shapes, sites))

    def line(name: str, cost: Cost, method: Method, note: str = "") -> Line:
        passes = method.backward_passes(chosen, shapes.n_layers)
        taken = sum(speed.seconds(of, tokens) for of, tokens in cost.layer_tokens.items())
        peak = peak_bytes(shapes, working_bytes(method, work))
        each = None if passes is None else passes / cost.components
        return Line(name, cost.forward_equivalents, taken, peak, each, note)

    halves = dtype.itemsize < 4  # in which there are no second derivatives
    wanted = list(map(method_named, methods or DEFAULT_METHODS))
    if methods is None and halves:
        wanted = [method for method in wanted if not method.second_order]
    for method in wanted:
        if method.second_order:
            require_precision(shapes)
    lines = [line(method.name, cost_of(method, work), method) for method in wanted]
    screening, runs = screening_cost(work, top=top, level=level, probes=0 if halves else probes)
    patched = sum(runs.values())
    lines.insert(
        1,
        line(
            SCREEN,
            screening,
            method_named(ESTIMATES[halves]),
            f"if {patched} exact runs of {screening.components} suffice",
        ),
    )
    choice, why = choose(lines, hours)
    return Plan(
        model=source,
        family=shapes.family.name,
        layers=shapes.n_layers,
        parameters=parameters(shapes),
        dtype=str(dtype).removeprefix("torch."),
        weight_bytes=size,
        components=screening.components,
        sites=sites,
        prompts=words,
        n=n,
        positions=max(length for length, _ in lengths),
        shared=min(shared for _, shared in lengths),
        speed=speed.words,
        lines=tuple(lines),
        placements=tuple(placements(shapes, list(device_memory))) if device_memory else (),
        choice=choice,
        why=why,
    )


def choose(lines: Sequence[Line], hours: float) -> tuple[str, str]:
    """The most that can be known in the time, and why."""
    taken = {line.method: line.seconds / 3600 for line in lines}
    exact, screened = taken.get("activation-patching"), taken[SCREEN]
    if exact is not None and exact <= hours and exact <= screened:
        return "activation-patching", "patching every component is cheaper than screening, and leaves nothing open"
    if exact is not None and exact <= hours:
        return (
            "activation-patching",
            f"patching every component takes no more than {hours:g} h, and leaves nothing open",
        )
    if screened <= hours:
        return (
            SCREEN,
            f"patching every component takes longer than {hours:g} h; screening patches those that may be large",
        )
    return SCREEN, (
        f"even screening takes longer than {hours:g} h: give it --budget, fewer pairs or fewer sites. Estimates alone "
        "say nothing of their errors"
    )


class _Speed:
    """Seconds of the baseline, and per layer token of each kind of work, measured when first asked for."""

    def __init__(
        self,
        config: PretrainedConfig,
        shapes: Model,
        dtype: torch.dtype,
        device: str,
        memory: str,
        work: Workload,
        rate: float | None,
    ) -> None:
        self._rate, self._shapes, self._memory, self._work = rate, shapes, memory, work
        self._pairs = made_up(work.lengths)
        self._sites = list(dict.fromkeys(component.site for component in select(work.outline, work.sites)))
        self._known: dict[str, float] = {}
        self._slices: tuple[Model, Model] | None = None
        if rate is not None:
            self.words = f"a machine of {rate / 1e12:.3g} TFLOP/s in matrix products, of which patching reaches 60 %"
            return
        layers = min(SLICE_LAYERS, shapes.n_layers)
        fewer = max(1, min(FEWER_LAYERS, layers - 1))
        of_layers = sum(parameter.numel() for layer in shapes.layers for parameter in layer.module.parameters())
        of_others = parameters(shapes) - of_layers
        needed = dtype.itemsize * (2 * of_others + 1.5 * (layers + fewer) * of_layers / shapes.n_layers)
        if needed > _free_bytes():
            raise OptionError(
                f"{layers} layers of {shapes.name} take {needed / 1e9:.3g} GB, more than this machine has free, so "
                "their speed cannot be measured here. Say what the machine that will compute does, such as "
                "--tflops 400."
            )
        of = (slice_of(config, count, dtype, torch.device(device)) for count in (layers, fewer))
        self._slices = next(of), next(of)
        threads = torch.get_num_threads()
        self.words = (
            f"{layers} layers with random weights, measured here on {device}"
            f"{f' with {threads} thread' + ('s' if threads > 1 else '') if device == 'cpu' else ''}"
        )

    def seconds(self, of: str, layer_tokens: float) -> float:
        """Of so much of the baseline's or a method's work."""
        if self._slices is None:
            assert self._rate is not None
            return seconds_by_rate(self._shapes, self._rate) * layer_tokens
        kind = BASELINE if of == BASELINE else kind_of_work(method_named(of))
        if kind not in self._known:
            self._known[kind] = (
                measured_baseline(self._slices, self._pairs, self._shapes.n_layers, self._memory)
                if kind == BASELINE
                else measured_seconds(self._slices[0], self._pairs, kind, self._sites, self._memory)
            )
        if kind == BASELINE:
            return self._known[kind] * self._work.n / len(self._pairs)
        return self._known[kind] * layer_tokens


def _free_bytes() -> float:
    return float(psutil.virtual_memory().available)
