"""What a method refuses before anything has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.data.metrics import Metric
from assay.engine.batches import Direction
from assay.engine.sources import MeanOver
from assay.errors import ModelError, OptionError, instead_of
from assay.model import Model
from assay.model.quantisation import kind_of
from assay.sites import Selection

if TYPE_CHECKING:
    from assay.methods.method import Method


def require_defined(method: Method, components: Selection) -> None:
    """Refuse components for which the method has no meaning."""
    for component in components:
        if method.kinds and component.site not in method.kinds:
            raise OptionError(f"{method.name} is defined for {', '.join(method.kinds)}, not for {component.site}.")
        if component.position is not None and not method.at_positions:
            raise OptionError(f"{method.name} takes whole components; leave @{component.position} out.")


def require_plain_weights(method: Method, model: Model) -> None:
    """Refuse gradients through quantised weights, whose backward pass may be missing or stand in for another."""
    quantised = model.quantisation if method.through_layers else kind_of(model.unembedding)
    if method.uses_gradients and quantised and not method.through_layers:
        raise ModelError(
            f"{method.name} reads the unembedding's weights, and those of {model.name} are quantised ({quantised}). "
            'Leave them out of it (optimum-quanto: quantize(hf, weights=..., exclude="lm_head"), then freeze(hf) and '
            "hf.eval()), load the full-precision checkpoint, or use activation-patching or an ablation, which only run "
            "the model."
        )
    if method.uses_gradients and quantised:
        raise ModelError(
            f"{method.name} takes gradients, and weights of {model.name} are quantised ({quantised}). Load the "
            "full-precision checkpoint, or dequantise it first; or use activation-patching or an ablation, which only "
            "run the model."
        )


def require_rules(method: Method) -> None:
    """Refuse backward rules where they would mean nothing."""
    if method.rules.is_plain:
        return
    if method.second_order:
        raise OptionError(
            f"{method.name} takes second derivatives. Under backward rules ({method.rules}) what goes back is no "
            "gradient of any function, so what its derivative would be is no curvature. Leave the rules out."
        )
    if not (method.uses_gradients and method.through_layers):
        raise OptionError(f"{method.name} takes no gradients through the layers, so it takes no backward rules.")


def require_reference(method: Method, given: bool) -> None:
    """Refuse reference prompts that the method would ignore."""
    if given and not method.uses_reference:
        raise OptionError(
            f"{method.name} takes no activations from other prompts; it takes no --reference (in Python: reference=)."
        )


def require_mean(method: Method, mean: str | None) -> MeanOver:
    """How to average; per position if None. Only methods that average take it."""
    if not method.uses_means and mean is not None:
        raise OptionError(f"{method.name} averages nothing; it takes no --mean (in Python: mean=).")
    if mean not in (None, "position", "all-positions"):
        raise OptionError(f"--mean is position or all-positions, not {mean!r}.")
    return "all-positions" if mean == "all-positions" else "position"


def require_direction(method: Method, direction: str | None) -> Direction:
    """The direction to use; denoise or, for ablations, their own if None."""
    if direction is None:
        return method.directions[0]
    if direction not in method.directions:
        if method.directions == ("ablation",):
            raise OptionError(f"{method.name} damages the clean run; it takes no --direction (in Python: direction=).")
        raise OptionError(f"There is no direction {direction!r}. {instead_of(direction, method.directions)}")
    return direction


def require_gradient(method: Method, metric: Metric, direction: Direction) -> None:
    """Refuse a metric without a gradient before anything has run."""
    if method.uses_gradients and metric.compares_with_clean and direction != "denoise":
        raise OptionError(
            f"{metric.name} is flat at the clean run, so {method.name} would give nothing but zeros there. Use "
            "--direction denoise (in Python: direction=), or activation-patching."
        )
    if method.uses_gradients and not metric.differentiable:
        raise OptionError(
            f"{method.name} needs a gradient, which {metric.name} does not have. Use activation-patching or an "
            "ablation, or another metric."
        )
