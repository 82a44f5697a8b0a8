"""How long a layer takes per token: measured on a slice of the model, or told by a machine's rate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from assay.data import PromptPairs
from assay.methods.method import Method, measure
from assay.methods.registry import METHODS
from assay.model import Model
from assay.sites import Selection, components_of

REPEATS = 3
SLICE_LAYERS = 4
FEWER_LAYERS = 2
"""Of a second slice: what the two differ by is what layers take, the rest is taken once."""
MOST_OPERATIONS = 2e11
"""Of one measurement: seconds of one core."""
SHARE_OF_RATE = 0.6
"""Of a machine's rate of matrix products that patching reaches (docs/performance.md)."""
REPRESENTATIVES = {
    "value": "activation-patching",
    "slope": "integrated-gradients",
    "curvature": "hvp",
    "gradient": "attribution-patching",
    "sampled curvature": "hvp-sampled",
}
"""One method of each kind of work."""


def kind_of_work(method: Method) -> str:
    """What a method's passes are like: their speed differs by it."""
    if not method.by_component:
        return "sampled curvature" if method.second_order else "gradient" if method.uses_gradients else "value"
    return "curvature" if method.second_order else "slope" if method.uses_gradients else "value"


def seconds_by_rate(model: Model, operations_per_second: float) -> float:
    """Of one token in one layer, at the share of a machine's rate of matrix products that patching reaches."""
    return operations_per_layer_token(model) / (SHARE_OF_RATE * operations_per_second)


def operations_per_layer_token(model: Model) -> float:
    """Two for each weight of an average layer; of experts, for those that a token passes through."""
    return 2 * sum(active_weights(model)) / model.n_layers


def active_weights(model: Model) -> list[float]:
    """Of each layer: the weights that one token meets."""
    chosen = getattr(model.config, "num_experts_per_tok", None)
    count = getattr(model.config, "num_local_experts", None) or getattr(model.config, "num_experts", None)
    found = []
    for layer in model.layers:
        weights = sum(parameter.numel() for parameter in layer.module.parameters())
        if chosen and count:
            experts = [
                parameter.numel() for name, parameter in layer.module.named_parameters() if ".experts." in f".{name}"
            ]
            weights -= sum(experts) * (1 - chosen / count)
        found.append(float(weights))
    return found


def measured_baseline(slices: tuple[Model, Model], pairs: PromptPairs, layers: int, memory: str) -> float:
    """Seconds of the baseline of a model of so many layers: on a straight line through two slices of fewer."""
    found = []
    for model in slices:
        times = []
        for _ in range(REPEATS + 1):
            scores = measure(METHODS["random"], model, pairs, sites="heads", memory=memory, force=True)
            times.append(scores.cost["seconds"]["baseline"])
        found.append(statistics.median(times[1:]))
    more, fewer = (model.n_layers for model in slices)
    each = max(0.0, found[0] - found[1]) / max(1, more - fewer)
    return float(found[0] + each * (layers - more))


def measured_seconds(model: Model, pairs: PromptPairs, kind: str, sites: Sequence[str], memory: str) -> float:
    """Seconds per layer token of one kind of work, on the slice: the median of a few runs, their baseline left out.

    Args:
        model: the slice.
        sites: kinds of sites.
    """
    method = METHODS[REPRESENTATIVES[kind]]
    components = [component for site in sites for component in components_of(model, site) if component.layer < 2]
    positions = len(pairs) * 16
    passes = MOST_OPERATIONS / (operations_per_layer_token(model) * model.n_layers * positions)
    if method.by_component:
        step = max(1, round(len(components) / max(2.0, passes)))
        components = components[::step]
    of_baseline = measure(METHODS["random"], model, pairs, sites="heads", memory=memory, force=True).cost
    rates = []
    for attempt in range(REPEATS + 1):
        scores = measure(method, model, pairs, sites=Selection(components), memory=memory, force=True)
        spent = scores.cost["layer_tokens_forward"] + 2 * scores.cost["layer_tokens_backward"]
        if attempt:  # the first makes caches warm
            seconds = sum(scores.cost["seconds"].values()) - scores.cost["seconds"]["baseline"]
            rates.append(seconds / (spent - of_baseline["layer_tokens_forward"]))
    return float(statistics.median(rates))
