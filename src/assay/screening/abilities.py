"""What a model and a metric allow: gradients, second derivatives, a response without jumps or kinks."""

from __future__ import annotations

from dataclasses import dataclass

from assay.data.metrics import Metric
from assay.engine.batches import Direction
from assay.model import Model

ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")
"""What configurations call the activation function."""
SMOOTH = frozenset(
    "gelu gelu_new gelu_fast gelu_python gelu_accurate gelu_pytorch_tanh gelu_python_tanh quick_gelu silu swish mish "
    "sigmoid tanh linear".split()
)
"""Activation functions with a second derivative everywhere; others have a kink, or may have one."""


@dataclass(frozen=True)
class Abilities:
    """What screening can build on, and sentences that say why not more."""

    gradients: bool
    """Estimates by attribution patching; without them only exhaustion is left."""
    curvature: bool
    smooth: bool
    """The response has a second derivative everywhere, so that one can bound errors by it."""
    notes: tuple[str, ...]


def abilities(model: Model, metric: Metric, direction: Direction, probes: int) -> Abilities:
    """What can be used here; ``probes`` of 0 means that no curvature is wanted."""
    why_flat = _why_no_gradient(model, metric, direction)
    if why_flat is not None:
        return Abilities(False, False, False, (f"{why_flat}, so there are no estimates: everything is patched.",))
    notes = []
    routed = any(layer.neuron_output is None for layer in model.layers)
    half = model.dtype.itemsize < 4
    if routed:
        notes.append(
            f"{model.name} routes tokens to experts, so a response may jump where the routing changes, and no "
            "derivative knows of it. No curvature is probed, there is no R, and intervals rest on the calibration "
            "sample alone."
        )
    elif half and probes:
        notes.append(
            f"Second derivatives drown in the rounding of {str(model.dtype).removeprefix('torch.')}: no curvature is "
            "probed and there is no R. Load with --dtype float32 for both."
        )
    elif not probes:
        notes.append("No curvature is probed (--probes 0), so there is no R and nothing is flagged.")
    return Abilities(True, bool(probes) and not routed and not half, not routed and _is_smooth(model), tuple(notes))


def _is_smooth(model: Model) -> bool:
    """No kink in an activation function, nor from values that are clipped (OLMo)."""
    named = [name for name in (getattr(model.config, key, None) for key in ACTIVATIONS) if name is not None]
    clipped = getattr(model.config, "clip_qkv", None) is not None
    return bool(named) and all(name in SMOOTH for name in named) and not clipped


def _why_no_gradient(model: Model, metric: Metric, direction: Direction) -> str | None:
    if not metric.differentiable:
        return f"{metric.name} has no gradient"
    if metric.compares_with_clean and direction != "denoise":
        return f"{metric.name} is flat at the clean run"
    if model.quantisation:
        return (
            f"Weights of {model.name} are quantised ({model.quantisation}), and gradients through them may be missing"
        )
    return None
