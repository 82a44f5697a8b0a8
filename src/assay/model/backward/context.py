"""``with backward_rules(model, "gim"):`` every backward pass through the model follows the rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from transformers import PreTrainedModel

from assay.errors import ModelError, OptionError
from assay.model.attention import exclusive, through_assay
from assay.model.backward.installation import Installation
from assay.model.backward.rules import RuleSet, rule_set
from assay.model.checks import require_sound
from assay.model.loading import load
from assay.model.model import Model

_installed: WeakKeyDictionary[PreTrainedModel, list[Installation]] = WeakKeyDictionary()
"""Of the blocks that are open on a model, in the order in which they began; the last one's rules hold."""
_asked_for: WeakKeyDictionary[PreTrainedModel, list[Asked]] = WeakKeyDictionary()
"""Of the user's own blocks alike."""
_sound: WeakSet[PreTrainedModel] = WeakSet()


@dataclass(eq=False)
class Asked:
    """One block of the user's."""

    rules: RuleSet


@contextmanager
def backward_rules(model: Model | PreTrainedModel | Any, rules: str | RuleSet) -> Iterator[RuleSet]:
    """Inside, gradients through the model follow the rules; no value of a forward pass changes.

    The graph that is built inside carries the rules, wherever it is gone back through. An inner ``with`` takes the
    place of an outer one until it ends. The model runs through assay's own attention function meanwhile, whose values
    are the same to the bit under all rules (and those of the model's own attention up to rounding). Hooks on the model
    stay and see what they saw; everything is put back on any exit. The model belongs to this thread meanwhile.
    It cannot be copied or pickled inside, and gradients cannot be differentiated again: they are those of no function.

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
    asked = Asked(chosen)
    with installed(found, chosen), through_assay(found.hf):
        blocks = _asked_for.setdefault(found.hf, [])
        blocks.append(asked)
        try:
            yield chosen
        finally:
            blocks.remove(asked)


def require_no_other_rules(model: Model, rules: RuleSet, what: str) -> None:
    """Refuse to put other rules in the place of those that the user asked for around this call.

    Args:
        rules: that are to hold.
        what: takes gradients under them.

    Raises:
        OptionError: the call stands inside a block of `backward_rules` with other rules.
    """
    blocks = _asked_for.get(model.hf)
    around = blocks[-1].rules if blocks else rules
    if around != rules:
        raise OptionError(
            f"{what} is called inside assay.backward_rules(..., {str(around)!r}), but follows rules of its own "
            "whatever is around it. Call it outside that block; first-order methods take others as rules= (on the "
            "command line --rules)."
        )


@contextmanager
def installed(model: Model, rules: RuleSet) -> Iterator[None]:
    """The rules hold in whatever runs through assay's attention function; otherwise as `backward_rules`.

    Of the blocks that are open, the last one entered holds, in whatever order others are left.
    """
    with exclusive(model.hf):
        blocks = _installed.setdefault(model.hf, [])
        blocks.append(_in_the_place_of(blocks[-1] if blocks else None, model, rules))
        mine = blocks[-1]
        try:
            yield
        finally:
            held = blocks[-1]
            blocks.remove(mine)
            now = blocks[-1] if blocks else None
            if now is not held:
                held.take_off()
                if now is not None:
                    now.put_on()


def _in_the_place_of(outer: Installation | None, model: Model, rules: RuleSet) -> Installation:
    """The rules, put on; the outer ones are off, unless they are the same."""
    if outer is not None and outer.rules == rules:
        return outer
    if outer is not None:
        outer.take_off()  # norms are looked at as they are, without rules
    try:
        inner = Installation(model, rules)
        inner.put_on()
    except BaseException:
        if outer is not None:
            outer.put_on()
        raise
    return inner


def _checked(hf: Any) -> Model:
    if not isinstance(hf, nn.Module):
        raise ModelError(f"Backward rules go on a model, as assay.load gives or of Hugging Face, not {hf!r:.80}.")
    model = load(hf, check=False)
    if model.hf not in _sound:
        require_sound(model)
        _sound.add(model.hf)
    return model
