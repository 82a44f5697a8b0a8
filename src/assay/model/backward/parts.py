"""The modules that backward rules act on, found in a model; anything that is not known is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn
from transformers.pytorch_utils import Conv1D

from assay.errors import ModelError
from assay.model.model import Model

Named = tuple[str, nn.Module]

_ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
_NOTHING_TO_DO = (nn.Dropout, nn.Identity, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass
class Parts:
    """Modules with their paths from the causal LM."""

    norms: list[Named] = field(default_factory=list)
    """On the residual stream, the final one included."""
    qk_norms: list[Named] = field(default_factory=list)
    activations: list[Named] = field(default_factory=list)
    gated: list[Named] = field(default_factory=list)
    """Their input carries the product of gate and up: down-projections, and experts as a whole."""
    experts: list[Named] = field(default_factory=list)
    """Whose activation function is no module of its own."""


def find_parts(model: Model) -> Parts:
    """All modules of the model that a rule may concern.

    Raises:
        ModelError: a module of an unknown kind; no rule can be told for it.
    """
    family, parts = model.family, Parts()
    names = {id(module): name for name, module in model.hf.named_modules()}
    for layer in model.layers:
        experts = _at(layer.module, family.experts)
        routers = [_at(layer.module, family.router)] if experts is not None else []
        for module in _leaves(layer.module):
            named = (names[id(module)], module)
            if "norm" in type(module).__name__.lower():
                inside = any(module is part for part in layer.attention.modules())
                (parts.qk_norms if inside else parts.norms).append(named)
            elif type(module).__module__ in _ACTIVATIONS:
                parts.activations.append(named)
            elif module is experts:
                parts.experts.append(named)
            elif not (_is_linear(module) or isinstance(module, _NOTHING_TO_DO) or module in routers):
                raise ModelError(
                    f"{named[0]} of {model.name} is a {type(module).__name__}, for which no backward rule is known. "
                    "Take it out, or use the plain backward pass (rules plain)."
                )
        outputs = [layer.neuron_output if family.gated else None, experts]
        outputs += [_at(layer.module, family.shared_neuron_output)] if family.shared_neuron_output else []
        parts.gated += [(names[id(module)], module) for module in outputs if module is not None]
    parts.norms.append((names[id(model.final_norm)], model.final_norm))
    return parts


def _leaves(root: nn.Module) -> Iterator[nn.Module]:
    """Modules that hold no others, each once."""
    return (module for module in root.modules() if not any(True for _ in module.children()))


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, Conv1D)) or isinstance(getattr(module, "in_features", None), int)


def _at(root: nn.Module, path: str) -> nn.Module | None:
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None
