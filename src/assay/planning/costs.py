"""What a method would cost: run on the shadow, which has every layer, and read off the meter.

A component's passes depend on its layer, not on which of the layer's heads or neurons it is. So one of each layer and
kind is run, and a second of each, whose price is that of all others; what serves all components at once has its price
already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.data import PromptPairs
from assay.engine.batches import recording_bytes
from assay.methods.method import Method, measure
from assay.methods.registry import METHODS, method_named
from assay.model import Model
from assay.reliability import exhaustion_is_cheaper
from assay.reliability.calibration import sample_size
from assay.sites import Component, Position, Selection, parse, select

LEAST_MEMORY = 16
"""MB that a run takes at least."""
FEW = 2
"""Pairs on which single components are run: what one costs on others follows from their lengths."""
BASELINE = "baseline"


@dataclass(frozen=True)
class Cost:
    """Of one method, on all prompts."""

    components: int
    layer_tokens: dict[str, float]
    """Token positions times layers, a backward pass counted as two: of the baseline, and of methods by name."""
    forward_equivalents: float


@dataclass(frozen=True)
class Workload:
    """What is to be measured, on a shadow of the model.

    Args:
        pairs: those that the shadow runs.
        lengths: tokens of each, and how many of them its clean and corrupted prompt begin with alike.
        n: how many there will be.
        memory: in bytes, of the model.
    """

    shadow: Model
    outline: Model
    pairs: PromptPairs
    lengths: tuple[tuple[int, int], ...]
    n: int
    sites: str
    metric: str | None
    memory: int

    @property
    def shadow_memory(self) -> str:
        """As many recordings fit into it as fit into the model's."""
        share = recording_bytes(self.shadow, 16) / recording_bytes(self.outline, 16)
        return f"{max(LEAST_MEMORY, self.memory * share / (1 << 20)):.0f}M"


def cost_of(method: Method, work: Workload) -> Cost:
    """Foresee a method's cost.

    Raises:
        AssayError: whatever the method would refuse.
    """
    groups = _groups(select(work.outline, work.sites))
    firsts = [Component(layer, site, None if unit is None else 0, at) for layer, site, unit, at in groups]
    baseline, once = _meter(METHODS["random"], work, work.pairs, firsts[-1:])

    def found(total: float) -> Cost:
        share = work.n / len(work.pairs)
        tokens = {BASELINE: baseline * share, method.name: (total - baseline) * share}
        return Cost(sum(groups.values()), tokens, total / once)

    if not method.by_component:
        return found(_meter(method, work, work.pairs, firsts)[0])
    every = -(-len(work.pairs) // FEW)
    few, later = work.pairs[::every], [length - shared for length, shared in work.lengths]
    of_one, _ = _meter(method, work, work.pairs, firsts[-1:])
    of_one_on_few, _ = _meter(method, work, few, firsts[-1:])
    of_firsts, _ = _meter(method, work, few, firsts)
    of_others = 0.0
    for site in dict.fromkeys(component.site for component in firsts):
        seconds = [
            Component(layer, site, 1, at) for (layer, of, unit, at), size in groups.items() if of == site and size > 1
        ]
        if seconds:
            of_both, _ = _meter(method, work, few, firsts + seconds)
            others = sum(size - 1 for (_, of, _, _), size in groups.items() if of == site)
            of_others += (of_both - of_firsts) * others / len(seconds)
    return found(of_one + (of_firsts - of_one_on_few + of_others) * sum(later) / sum(later[::every]))


def screening_cost(work: Workload, *, top: int, level: float, probes: int) -> tuple[Cost, dict[str, int]]:
    """Foresee the cost of screening; and the exact runs of each kind of site that this assumes.

    How many components a search patches is known only once it is done. Assumed are the sample, the pilot, and half as
    many more: what was seen on heads and neurons of two language models.
    """
    chosen = select(work.outline, work.sites)
    exact = METHODS["activation-patching"]
    nothing = cost_of(METHODS["random"], work)
    runs: dict[str, int] = {}
    tokens = defaultdict(float, {BASELINE: nothing.layer_tokens[BASELINE]})
    curved = method_named("hvp-sampled", probes=probes) if probes else METHODS["attribution-patching"]
    for site, members in Counter(component.site for component in chosen).items():
        mine = _of(work, site)
        each = cost_of(exact, mine).layer_tokens[exact.name] / members
        estimates = [  # the second is that of the far end
            (method.name, cost_of(method, mine).layer_tokens[method.name])
            for method in (curved, METHODS["attribution-patching"])
        ]
        least = min(top, members) + sample_size(members, level)
        if exhaustion_is_cheaper(members, least + sum(spent for _, spent in estimates) / max(each, 1)):
            runs[site] = members
        else:
            runs[site] = min(members, least + top // 2)
            for name, spent in estimates:
                tokens[name] += spent
        tokens[exact.name] += each * runs[site]
    once = nothing.layer_tokens[BASELINE] / nothing.forward_equivalents
    return Cost(len(chosen), dict(tokens), sum(tokens.values()) / once), runs


def _of(work: Workload, site: str) -> Workload:
    """The same work, on one kind of its sites."""
    terms = [term.strip() for term in work.sites.split(",")]
    return replace(work, sites=",".join(term for term in terms if parse(term)[0][0] == site))


def _groups(chosen: Sequence[Component]) -> dict[tuple[int, str, int | None, Position], int]:
    """How many there are of each layer, kind and position; the third entry is None of what has no units."""
    found: Counter[tuple[int, str, int | None, Position]] = Counter()
    for component in chosen:
        found[component.layer, component.site, None if component.unit is None else 0, component.position] += 1
    return dict(found)


def _meter(method: Method, work: Workload, pairs: PromptPairs, components: Sequence[Component]) -> tuple[float, float]:
    """Layer tokens spent, and those of one forward pass of every prompt."""
    scores = measure(
        method,
        work.shadow,
        pairs,
        sites=Selection(components),
        metric=work.metric,
        memory=work.shadow_memory,
        force=True,
    )
    spent = scores.cost["layer_tokens_forward"] + 2 * scores.cost["layer_tokens_backward"]
    return float(spent), spent / scores.cost["forward_equivalents"]
