"""Puts a set of backward rules on a model's modules, and takes it off again.

Norms and activation functions get a forward method around their own; what carries a product into a projection gets a
hook in front of all others, so that whoever watches the product sees its whole gradient. `Model.has_foreign_hooks`
knows both by this module's name: they change no value.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from assay.model.attention import AttentionRules, attention_rules
from assay.model.backward.activations import as_identity, with_constant_sigmoid
from assay.model.backward.norms import require_frozen, with_constant_factor
from assay.model.backward.parts import Parts, find_parts
from assay.model.backward.rules import RuleSet
from assay.model.model import Model
from assay.model.replacing import OfThisModel, replaced
from assay.model.surrogates import divided_gradient


class Installation:
    """The rules on one model's modules.

    Raises:
        ModelError: a module that no rule is known for, or a norm that is none.
    """

    def __init__(self, model: Model, rules: RuleSet) -> None:
        self.rules = rules
        self._model = model
        self._parts = Parts() if rules.is_plain else find_parts(model)
        self._on = ExitStack()
        for name, norm in self._norms:
            inside = (name, norm) in self._parts.qk_norms
            require_frozen(name, norm, model.d_head if inside else model.d_model, model.dtype)

    @property
    def _norms(self) -> list[tuple[str, nn.Module]]:
        parts, rules = self._parts, self.rules
        return (parts.norms if rules.freeze_norms else []) + (parts.qk_norms if rules.freeze_qk_norms else [])

    def put_on(self) -> None:
        with ExitStack() as on:
            self._put_on(on)
            self._on = on.pop_all()

    def take_off(self) -> None:
        self._on.close()

    def _put_on(self, on: ExitStack) -> None:
        model, parts, rules = self._model, self._parts, self.rules
        if (in_attention := _in_attention(rules)) != AttentionRules():
            for layer in model.layers:
                attention_rules[layer.attention] = in_attention
                on.callback(attention_rules.pop, layer.attention, None)
        for name, norm in self._norms:
            on.enter_context(replaced(norm, with_constant_factor(name, norm.forward)))
        if "gate-up" in rules.divide:
            for _, module in parts.gated:
                handle = module.register_forward_pre_hook(_Halving(), with_kwargs=True, prepend=True)
                on.callback(handle.remove)
        if rules.activation == "identity":
            for name, module in parts.activations:
                on.enter_context(replaced(module, as_identity(name, module.forward, model.dtype)))
            for name, module in parts.experts:
                on.enter_context(replaced(module, with_constant_sigmoid(name, module.forward)))


def _in_attention(rules: RuleSet) -> AttentionRules:
    if rules.value_path_only:
        return AttentionRules(constant_pattern=True)  # one varying factor, so nothing to divide
    return AttentionRules(
        temperature=rules.temperature,
        query_key_divisor=2 if "query-key" in rules.divide else 1,
        pattern_value_divisor=2 if "pattern-value" in rules.divide else 1,
    )


class _Halving(OfThisModel):
    """Both factors of a product get half their gradient when the product gets half of its own.

    Experts multiply gate and up inside; what comes after is linear, so half the gradient at their input is the same.
    """

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first: Tensor
        if args:
            first, *others = args
            return (divided_gradient(first, 2), *others), kwargs
        name, first = next(iter(kwargs.items()))
        return args, {**kwargs, name: divided_gradient(first, 2)}
