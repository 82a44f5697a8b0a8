"""``with backward_rules(model, "gim"):`` every backward pass through the model follows the rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from transformers import PreTrainedModel

from assay.errors import ModelError, OptionError
from assay.model.attention import exclusive, through_assay
from assay.model.backward.installation import Installation
from assay.model.backward.rules import PLAIN, RuleSet, rule_set
from assay.model.checks import require_sound
from assay.model.loading import load
from assay.model.model import Model

_installed: WeakKeyDictionary[PreTrainedModel, Installation] = WeakKeyDictionary()
_asked_for: WeakKeyDictionary[PreTrainedModel, RuleSet] = WeakKeyDictionary()
"""Of the innermost block of the user's."""
_sound: WeakSet[PreTrainedModel] = WeakSet()


@contextmanager
def backward_rules(model: Model | PreTrainedModel | Any, rules: str | RuleSet) -> Iterator[RuleSet]:
    """Inside, gradients through the model follow the rules; no value of a forward pass changes.

    The graph that is built inside carries the rules, wherever it is gone back through. An inner ``with`` takes the
    place of an outer one until it ends. The model runs through assay's own attention function meanwhile, whose values
    are the same to the bit under all rules (and those of the model's own attention up to rounding). Hooks on the model
    stay and see what they saw; everything is put back on any exit. The model belongs to this thread meanwhile.

    Gradients of activations are what the rules are about; those of weights are not defined by them.

    Gradients that you take yourself follow the rules. assay's own functions have rules of their own (``rules=``), and
    refuse to be called inside a block of others.

    >>> with assay.backward_rules(hf, "gim"):
    ...     logits = hf(inputs_embeds=embeddings).logits
    ...     (gradient,) = torch.autograd.grad(logits[0, -1, token], embeddings)

    Args:
        model: an `assay.Model`, or a Hugging Face causal language model in evaluation mode, which is checked first as
            `assay.load` does.
        rules: a name (``plain``, ``gim``, ``transformer-lrp``, ``attn-lrp``, ...; see `PRESETS`) or a `RuleSet`.

    Yields:
        The rules.

    Raises:
        OptionError: unknown rules.
        ModelError: a model that assay does not support or that is in training mode, or a module inside it for which no
            rule is known.
    """
    chosen = rule_set(rules)
    found = model if isinstance(model, Model) else _checked(model)
    found.require_ready()
    hf = found.hf
    with installed(found, chosen), through_assay(hf):
        around = _asked_for.get(hf)
        _asked_for[hf] = chosen
        try:
            yield chosen
        finally:
            _asked_for.pop(hf)
            if around is not None:
                _asked_for[hf] = around


def require_no_other_rules(model: Model, rules: RuleSet, what: str) -> None:
    """Refuse to put other rules in the place of those that the user asked for around this call.

    Args:
        rules: that are to hold.
        what: takes gradients under them.

    Raises:
        OptionError: the call stands inside a block of `backward_rules` with other rules.
    """
    around = _asked_for.get(model.hf)
    if around is not None and around != rules:
        raise OptionError(
            f"{what} is called inside assay.backward_rules(..., {str(around)!r}), but follows rules of its own "
            "whatever is around it. Call it outside that block; first-order methods take others as rules= (on the "
            "command line --rules)."
        )


@contextmanager
def installed(model: Model, rules: RuleSet) -> Iterator[None]:
    """The rules hold in whatever runs through assay's attention function; otherwise as `backward_rules`."""
    hf = model.hf
    with exclusive(hf):
        outer = _installed.get(hf)
        if rules == (PLAIN if outer is None else outer.rules):
            yield
            return
        inner: Installation | None = None
        try:
            if outer is not None:
                outer.take_off()  # norms are looked at as they are, without rules
            inner = Installation(model, rules)
            inner.put_on()
            _installed[hf] = inner
            yield
        finally:
            if inner is not None:
                inner.take_off()
            _installed.pop(hf, None)
            if outer is not None:
                _installed[hf] = outer
                outer.put_on()


def _checked(hf: Any) -> Model:
    if not isinstance(hf, nn.Module):
        raise ModelError(f"Backward rules go on a model, as assay.load gives or of Hugging Face, not {hf!r:.80}.")
    model = load(hf, check=False)
    if model.hf not in _sound:
        require_sound(model)
        _sound.add(model.hf)
    return model
