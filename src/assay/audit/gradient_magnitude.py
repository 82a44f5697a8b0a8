"""Gradient magnitude G: how large the loss gradient of a component's weights is, whatever its direction.

Of a head: the gradients of its rows of W_V and its columns of W_O, concatenated; of an MLP: that of its output matrix
(or of all its matrices). G is the Frobenius norm over the square root of how many numbers that are, averaged over
batches (Ye, arXiv 2602.01442). Query heads that share values share weights of W_V: there a head gets the part of the
gradient that comes through it alone, so that the parts of the group add up to the gradient of the shared weights.

The loss is the mean negative log-probability of the answers' tokens, teacher-forced.

Axes: B rows, S positions, H heads, K key-value heads, G = H / K, D head width, C components.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from assay.data.encoding import Row
from assay.data.metrics import METRICS
from assay.engine.batches import Batch, make_batches
from assay.errors import InterventionError, ModelError, OptionError, instead_of
from assay.model import Model
from assay.model.attention import tapped
from assay.sites import Component

MLP_WEIGHTS = ("output", "all")


class WeightGradients:
    """Gradient magnitudes of the components of one model.

    Args:
        components: heads and MLPs.
        mlp_weights: ``output``: of an MLP its output matrix; ``all``: its input matrices, too.

    Raises:
        ModelError: weights that are no plain matrices (adapters, quantised ones, experts), or not in place.
        OptionError: unknown ``mlp_weights``.
    """

    def __init__(self, model: Model, components: Sequence[Component], mlp_weights: str = "output") -> None:
        if mlp_weights not in MLP_WEIGHTS:
            raise OptionError(f"There are no MLP weights {mlp_weights!r}. {instead_of(mlp_weights, MLP_WEIGHTS)}")
        model.require_one_device("Gradient magnitude")
        model.require_weights_in_place("Gradient magnitude")
        self.model, self.components = model, list(components)
        self.groups = model.n_heads // model.n_kv_heads
        self.values = {c.layer: _value_weight(model, c.layer) for c in components if c.site == "heads"}
        self.outputs = {
            c.layer: _matrix(model.layers[c.layer].output_projection, model)
            for c in components if c.site == "heads"
        }  # fmt: skip
        self.mlps = {c.layer: _mlp_weights(model, c.layer, mlp_weights) for c in components if c.site == "mlps"}

    def magnitudes(self, rows: Sequence[Row], memory: int) -> np.ndarray:
        """(C,) G of one batch.

        Args:
            rows: of the batch, encoded for ``log-prob``; those of one length run together, and gradients add up.
            memory: bytes that may be taken at once.
        """
        tokens = sum(len(row.tokens) for row in rows)
        sums: dict[object, Tensor] = {}
        for batch in make_batches(self.model, rows, "ablation", memory, by_start=False):
            self._add(batch, tokens, sums)
        return np.array([self._magnitude(component, sums) for component in self.components])

    def _add(self, batch: Batch, tokens: int, sums: dict[object, Tensor]) -> None:
        """Add the gradients of some rows' loss."""
        shared = [*self.outputs.values(), *(weight for weights in self.mlps.values() for weight in weights)]
        by_value = [weight for weight, _, _ in self.values.values()]
        tap = _Ungrouping(self.groups, self.values)
        with _wanting(self.model, [*shared, *by_value]), tapped(self.model.hf, tap), torch.enable_grad():
            loss = _summed_loss(self.model, batch) / tokens
            layers = sorted(self.values)
            found = torch.autograd.grad(
                loss, [*shared, *(tap.ungrouped[layer] for layer in layers)], retain_graph=bool(layers)
            )
            for weight, gradient in zip(shared, found[: len(shared)], strict=True):
                _accumulate(sums, id(weight), gradient)
            for layer, gradient in zip(layers, found[len(shared) :], strict=True):
                # Query head k G + g is the g-th of key-value head k.
                of_group = gradient.view(len(gradient), -1, self.groups, *gradient.shape[2:])
                weight = self.values[layer][0]
                for g in range(self.groups):
                    (through,) = torch.autograd.grad(tap.shared[layer], weight, of_group[:, :, g], retain_graph=True)
                    _accumulate(sums, (id(weight), g), through)

    def _magnitude(self, component: Component, sums: dict[object, Tensor]) -> float:
        if component.site == "mlps":
            parts = [sums[id(weight)] for weight in self.mlps[component.layer]]
        else:
            assert component.unit is not None
            width, kv_head, g = self.model.d_head, *divmod(component.unit, self.groups)
            weight, columns, is_transposed = self.values[component.layer]
            through = sums[id(weight), g]
            output = self.outputs[component.layer]
            whole = sums[id(output)]
            of_output = whole if _is_conv1d(self.model.layers[component.layer].output_projection) else whole.T
            own = slice(component.unit * width, (component.unit + 1) * width)
            parts = [(through.T if is_transposed else through)[columns[kv_head]], of_output[own]]
        squares = sum(part.double().square().sum().item() for part in parts)
        return float((squares / sum(part.numel() for part in parts)) ** 0.5)


def _accumulate(sums: dict[object, Tensor], key: object, gradient: Tensor) -> None:
    sums[key] = gradient if key not in sums else sums[key] + gradient


def _summed_loss(model: Model, batch: Batch) -> Tensor:
    """The summed negative log-probability of the answers' tokens."""
    ids, count = batch.base, batch.targets.positions.shape[1]
    # An answer is read at the last positions of its row.
    kept = 0 if model.has_foreign_hooks else count
    output = model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=kept)
    logits = output.logits[:, -count:].to(torch.promote_types(model.dtype, torch.float32))
    return -METRICS["log-prob"].values(logits, batch.targets).sum()


class _Ungrouping:
    """Gives every query head keys and values of its own, and keeps both."""

    def __init__(self, groups: int, layers: Collection[int]) -> None:
        self.groups, self.layers = groups, layers
        self.shared: dict[int, Tensor] = {}
        self.ungrouped: dict[int, Tensor] = {}

    def attention_inputs(
        self, layer: int, q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if layer not in self.layers:
            return q_BHTD, k_BKSD, v_BKSD
        self.shared[layer] = v_BKSD
        self.ungrouped[layer] = v_BKSD.repeat_interleave(self.groups, 1)
        return q_BHTD, k_BKSD.repeat_interleave(self.groups, 1), self.ungrouped[layer]

    def head_outputs(self, layer: int, z_BTHD: Tensor) -> Tensor:
        return z_BTHD


@contextmanager
def _wanting(model: Model, weights: Sequence[nn.Parameter]) -> Iterator[None]:
    """Only these weights need a gradient inside; each parameter gets its own setting back."""
    before = [(parameter, parameter.requires_grad) for parameter in model.hf.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(False)
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


def _matrix(module: nn.Module | None, model: Model) -> nn.Parameter:
    if type(module) not in (nn.Linear, Conv1D):
        kind = "experts" if module is None else f"a {type(module).__name__}"
        raise ModelError(
            f"Gradient magnitude is that of plain weight matrices; {model.name} has {kind} in their place. Leave the "
            "component out (--sites heads), or merge adapters into the weights."
        )
    return cast(nn.Parameter, cast(nn.Linear, module).weight)


def _is_conv1d(module: nn.Module) -> bool:
    """Weights as (in, out) instead of (out, in)."""
    return type(module) is Conv1D


def _value_weight(model: Model, layer: int) -> tuple[nn.Parameter, list[slice], bool]:
    """What makes a layer's values, which of its outputs each key-value head has, and whether outputs are columns."""
    family, attention = model.family, model.layers[layer].attention
    module = attention.get_submodule(family.projections[-1])
    weight = _matrix(module, model)
    if len(family.projections) == 3:
        numbers = list(range(model.n_kv_heads))
    elif family.projection_is_by_head:
        numbers = [3 * head + 2 for head in range(model.n_heads)]
    else:
        numbers = [model.n_heads + model.n_kv_heads + head for head in range(model.n_kv_heads)]
    units = [slice(number * model.d_head, (number + 1) * model.d_head) for number in numbers]
    outputs = weight.shape[1 if _is_conv1d(module) else 0]
    if units[-1].stop != outputs:
        raise InterventionError(f"The values of layer {layer} are {outputs} wide, not up to {units[-1].stop}.")
    return weight, units, _is_conv1d(module)


def _mlp_weights(model: Model, layer: int, which: str) -> list[nn.Parameter]:
    found = model.layers[layer]
    weights = [_matrix(found.neuron_output, model)]
    if which == "all":
        inputs: list[nn.Module | None] = [found.neuron_input]
        if model.family.gated and not found.neuron_input_is_fused:
            inputs.append(found.mlp.get_submodule("up_proj"))
        weights += [_matrix(module, model) for module in inputs]
    return weights
