"""Backward rules as values: what a backward pass does otherwise than the derivative, and the sets with a name.

Gradient x input is meant throughout: a rule of layer-wise relevance propagation stands here as the gradient that, times
the input, gives its relevance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from assay.errors import OptionError, instead_of

Product = Literal["pattern-value", "query-key", "gate-up"]
PRODUCTS: tuple[Product, ...] = get_args(Product)
Activation = Literal["derivative", "identity"]


@dataclass(frozen=True)
class RuleSet:
    """Rules of a backward pass; with none, it is the derivative. The forward pass is the same to the bit under all.

    Args:
        temperature: T of the attention softmax on its way to queries and keys: ``dS = p_T * (dP - sum(dP * p_T))`` with
            ``p_T = softmax(S / T)`` over the keys and, where there is one, the sink; no factor 1 / T. Values get their
            gradient by the true pattern. (GIM, arXiv 2505.17630: temperature-adjusted softmax gradients.)
        freeze_norms: the factor of every norm on the residual stream, before or after a sublayer and at the end, is a
            constant; a layer norm's mean is still subtracted. (GIM; the LN rule of arXiv 2202.07304, eq. 9; the
            identity rule for norms of arXiv 2402.05602, sec. 3.3.4.)
        freeze_qk_norms: the same for norms of queries and keys inside attention, where an architecture has them.
        divide: products whose factors both vary and get half their gradient each: ``pattern-value`` (the pattern and
            the values), ``query-key`` (queries and keys) and ``gate-up`` (the two halves of a gated MLP, experts
            included). Queries and keys lie below two products, so a quarter is left of theirs. Weights of routing
            multiply experts' outputs without being divided, and ungated MLPs have no product. (GIM: gradient norm; the
            uniform rule of arXiv 2402.05602, eq. 7.)
        value_path_only: the attention pattern is a constant, so that gradients reach a head through its values alone.
            Its product has one varying factor then, which is not divided. (The AH rule of arXiv 2202.07304, eq. 8.)
        activation: of an MLP's activation function f: its ``derivative``, or ``identity``, f(x) / x, which passes the
            relevance of f(x) on to x whole (arXiv 2402.05602, eq. 9).

    Raises:
        OptionError: a temperature that is not positive and finite, or an unknown product or activation rule.
    """

    temperature: float = 1.0
    freeze_norms: bool = False
    freeze_qk_norms: bool = False
    divide: tuple[Product, ...] = ()
    value_path_only: bool = False
    activation: Activation = "derivative"

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise OptionError(f"The temperature of the softmax must be positive and finite, not {self.temperature}.")
        for product in self.divide:
            if product not in PRODUCTS:
                raise OptionError(f"There is no product {product!r} to divide. {instead_of(product, PRODUCTS)}")
        if self.activation not in get_args(Activation):
            known = get_args(Activation)
            raise OptionError(f"There is no activation rule {self.activation!r}. {instead_of(self.activation, known)}")
        object.__setattr__(self, "temperature", float(self.temperature))
        object.__setattr__(self, "divide", tuple(product for product in PRODUCTS if product in self.divide))

    @property
    def is_plain(self) -> bool:
        """Whether the backward pass is the derivative."""
        return self == PLAIN

    def __str__(self) -> str:
        """The preset's name, or the rules written out."""
        for name, preset in PRESETS.items():
            if preset.rules == self:
                return name
        parts = [f"temperature={self.temperature:g}"] if self.temperature != 1 else []
        parts += [name.replace("_", "-") for name in _SWITCHES if getattr(self, name)]
        parts += [f"divide={'/'.join(self.divide)}"] if self.divide else []
        parts += [f"activation={self.activation}"] if self.activation != "derivative" else []
        return "+".join(parts)


_SWITCHES = ("freeze_norms", "freeze_qk_norms", "value_path_only")


@dataclass(frozen=True)
class Preset:
    """Rules that go by a name."""

    rules: RuleSet
    description: str
    source: str


PLAIN = RuleSet()
GIM = RuleSet(temperature=2, freeze_norms=True, divide=PRODUCTS)
_GIM_SOURCE = "Edin et al., arXiv 2505.17630"

PRESETS: dict[str, Preset] = {
    "plain": Preset(PLAIN, "the derivative", "calculus"),
    "gim": Preset(GIM, "softmax at temperature 2, frozen norms, divided products", _GIM_SOURCE),
    "gim-without-temperature": Preset(replace(GIM, temperature=1), "frozen norms, divided products", _GIM_SOURCE),
    "gim-without-norm": Preset(
        replace(GIM, freeze_norms=False), "softmax at temperature 2, divided products", _GIM_SOURCE
    ),
    "gim-without-product": Preset(replace(GIM, divide=()), "softmax at temperature 2, frozen norms", _GIM_SOURCE),
    "transformer-lrp": Preset(
        RuleSet(freeze_norms=True, value_path_only=True),
        "frozen norms, constant attention patterns",
        "Ali et al., arXiv 2202.07304",
    ),
    # The Deep Taylor rule of the softmax, R_x = x * (R_p - p * sum(R_p)), is input x derivative, so it needs no entry.
    "attn-lrp": Preset(
        RuleSet(freeze_norms=True, freeze_qk_norms=True, divide=PRODUCTS, activation="identity"),
        "frozen norms, divided products, activations as identity",
        "Achtibat et al., arXiv 2402.05602",
    ),
}


def rule_set(rules: str | RuleSet) -> RuleSet:
    """The rules of a name (`PRESETS`), or what was given if it is a `RuleSet`.

    Raises:
        OptionError: an unknown name, or something else.
    """
    if isinstance(rules, RuleSet):
        return rules
    if not isinstance(rules, str):
        raise OptionError(f"Backward rules are a name or a RuleSet, not {rules!r:.80}. {instead_of('', PRESETS)}")
    if rules not in PRESETS:
        raise OptionError(f"There are no backward rules {rules!r}. {instead_of(str(rules), PRESETS)}")
    return PRESETS[rules].rules
