"""How much each token of a prompt speaks for a target, one method an entry.

M is what is explained, e the prompt's embeddings, e' the baseline's. A token's score is positive where the token, in
the place of its baseline, makes the target more likely. Without backward rules it is in M's unit; with them it only
ranks.

========================  ==================================================================  ======================
method                    score of token t                                                    passes (backward is 2)
========================  ==================================================================  ======================
gradient-x-input          ``(e_t - e'_t) . dM/de_t``                                          3
integrated-gradients      the same with the gradient averaged along the way from e' to e      3 a step
deeplift                  the same with Rescale's multipliers in MLPs                         6
transformer-lrp, ...      gradient-x-input under backward rules                               3
leave-one-out             ``M(e) - M(e with e'_t)``                                           1 a token
random                    standard normal                                                     none
========================  ==================================================================  ======================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.encoding import Row
from assay.engine.cost import CostMeter
from assay.errors import ModelError, OptionError, instead_of
from assay.model import Model
from assay.tokens.baselines import Replacement
from assay.tokens.deeplift import require_ungated, rescaled
from assay.tokens.path_integral import path_integral
from assay.tokens.questions import Asked
from assay.tokens.runs import embeddings_of, gradients_of, require_finite, values_of

DEFAULT_STEPS = 50
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """What all methods of a run share."""

    model: Model
    memory: int
    """Bytes."""
    seed: int
    steps: int
    """Of integrated gradients."""
    cost: CostMeter


@dataclass(frozen=True)
class Inputs:
    """A question's embeddings; L is a row's length, of which T tokens are the prompt's.

    ``rows`` holds for each row its embeddings and the baseline's, (L, M) each. They are equal at fixed tokens and at
    those of the target.
    """

    number: int
    """Of the question in its run."""
    asked: Asked
    rows: tuple[tuple[Row, Tensor, Tensor], ...]

    @property
    def length(self) -> int:
        return len(self.asked.prompt)


@dataclass(frozen=True)
class TokenMethod:
    """A way to score tokens."""

    name: str
    description: str
    source: str
    compute: Callable[[Setting, Inputs], Numbers]
    """T scores."""
    rules: str = "plain"
    """Of the backward pass."""
    uses_gradients: bool = True
    is_complete: bool = False
    """Scores are meant to sum to M(text) - M(baseline), so the gap is a measure of their error."""
    needs_ungated: bool = False


def inputs_of(model: Model, number: int, asked: Asked, replacement: Replacement) -> Inputs:
    """The embeddings that a question's methods run on."""
    fixed = torch.tensor(asked.fixed, device=model.device).unsqueeze(1)
    rows = []
    for row in asked.rows:
        text = embeddings_of(model, row.clean)
        baseline = text.clone()
        prompt = text[: len(asked.prompt)]
        baseline[: len(prompt)] = torch.where(fixed, prompt, replacement.embeddings.expand_as(prompt))
        rows.append((row, text, baseline))
    return Inputs(number, asked, tuple(rows))


def _along(inputs: Inputs, text: Tensor, baseline: Tensor, gradients: Tensor) -> Numbers:
    """(N, T): gradients (N, L, M) times the difference of embeddings, in float64."""
    difference = (text.double() - baseline.double()).cpu()
    products = torch.einsum("lm,nlm->nl", difference, gradients.double())
    return np.asarray(products[:, : inputs.length].numpy())


def _gradients(setting: Setting, inputs: Inputs, row: Row, at_NLM: Tensor) -> tuple[Tensor, Tensor]:
    targets = inputs.asked.targets(row, 1, setting.model.device)
    return gradients_of(setting.model, row.clean, at_NLM, targets, inputs.asked.metric, setting.memory, setting.cost)


def _gradient(setting: Setting, inputs: Inputs) -> Numbers:
    total = np.zeros(inputs.length)
    for row, text, baseline in inputs.rows:
        _, gradients = _gradients(setting, inputs, row, text[None])
        total += _along(inputs, text, baseline, gradients)[0]
    return total


def _integrated(setting: Setting, inputs: Inputs) -> Numbers:
    total = np.zeros(inputs.length)
    for row, text, baseline in inputs.rows:

        def evaluate(
            strengths: Numbers, row: Row = row, text: Tensor = text, baseline: Tensor = baseline
        ) -> tuple[Numbers, Numbers]:
            at = torch.from_numpy(strengths).to(text.device, text.dtype).view(-1, 1, 1)
            values, gradients = _gradients(setting, inputs, row, baseline + at * (text - baseline))
            slopes = _along(inputs, text, baseline, gradients)
            for what, found in (("a value", values), ("a slope", slopes)):
                require_finite(setting.model, inputs.asked.question.id, f"on the way from the baseline {what}", found)
            return values.numpy(), slopes

        total += path_integral(evaluate, setting.steps)
    return total


def _deeplift(setting: Setting, inputs: Inputs) -> Numbers:
    total = np.zeros(inputs.length)
    for row, text, baseline in inputs.rows:
        targets = inputs.asked.targets(row, 1, setting.model.device)
        with rescaled(setting.model, len(text)):
            _, gradients = gradients_of(
                setting.model, row.clean, torch.stack([text, baseline]), targets, inputs.asked.metric,
                memory=setting.memory, cost=setting.cost, together=True,
            )  # fmt: skip
        total += _along(inputs, text, baseline, gradients[:1])[0]
    return total


def _leave_one_out(setting: Setting, inputs: Inputs) -> Numbers:
    free = [position for position, fixed in enumerate(inputs.asked.fixed) if not fixed]
    without = np.zeros((len(free) + 1, inputs.length), bool)
    without[np.arange(len(free)), free] = True
    values = replaced_values(setting, inputs, without)[0]
    scores = np.zeros(inputs.length)
    scores[free] = values[-1] - values[:-1]
    return scores


def _random(setting: Setting, inputs: Inputs) -> Numbers:
    draws = np.random.default_rng([setting.seed, inputs.number]).standard_normal(inputs.length)
    return np.where(inputs.asked.fixed, 0.0, draws)


def replaced_values(setting: Setting, inputs: Inputs, replaced_NT: NDArray[np.bool_]) -> Numbers:
    """What is explained, and the probability, with sets of tokens replaced by their baselines.

    Args:
        replaced_NT: which tokens, in each of N runs.

    Returns:
        (2, N): M, and the target's probability less that of its contrast.
    """
    asked = inputs.asked
    total = np.zeros((2, len(replaced_NT)))
    for row, text, baseline in inputs.rows:
        targets = asked.targets(row, 1, setting.model.device)
        tail = np.zeros((len(replaced_NT), len(text) - inputs.length), bool)
        mask = torch.from_numpy(np.hstack([replaced_NT, tail])).to(text.device).unsqueeze(-1)
        at_once = max(1, setting.memory // (4 * text.numel() * text.element_size()))
        for first in range(0, len(mask), at_once):  # the embeddings alone may be large
            part = slice(first, first + at_once)
            new = torch.where(mask[part], baseline, text)
            metrics = (asked.metric, asked.probability)
            found = values_of(setting.model, row.clean, new, targets, metrics, setting.memory, setting.cost)
            total[:, part] += found.numpy()
    return total


_GIM = "Edin et al., arXiv 2505.17630"

METHODS: dict[str, TokenMethod] = {
    method.name: method
    for method in (
        TokenMethod(
            "gim", "gradient x input; softmax at temperature 2, frozen norms, divided products", _GIM, _gradient, "gim"
        ),
        TokenMethod(
            "gim-without-temperature", "GIM with the softmax's own gradient", _GIM, _gradient, "gim-without-temperature"
        ),
        TokenMethod("gim-without-norm", "GIM with gradients through norm factors", _GIM, _gradient, "gim-without-norm"),
        TokenMethod("gim-without-product", "GIM with undivided products", _GIM, _gradient, "gim-without-product"),
        TokenMethod(
            "gradient-x-input",
            "gradient times the difference of embeddings",
            "Shrikumar et al., arXiv 1605.01713",
            _gradient,
        ),
        TokenMethod(
            "integrated-gradients",
            "the same, averaged along the way from the baseline",
            "Sundararajan et al., arXiv 1703.01365",
            _integrated,
            is_complete=True,
        ),
        TokenMethod(
            "transformer-lrp",
            "gradient x input; frozen norms, constant attention patterns",
            "Ali et al., arXiv 2202.07304",
            _gradient,
            "transformer-lrp",
        ),
        TokenMethod(
            "attn-lrp",
            "gradient x input; frozen norms, divided products, activations as identity",
            "Achtibat et al., arXiv 2402.05602",
            _gradient,
            "attn-lrp",
        ),
        TokenMethod(
            "deeplift",
            "gradient x input; differences of activations in MLPs without a gate",
            "Shrikumar et al., arXiv 1704.02685",
            _deeplift,
            is_complete=True,
            needs_ungated=True,
        ),
        TokenMethod(
            "leave-one-out",
            "exact: the drop when one token is replaced",
            "Li et al., arXiv 1612.08220",
            _leave_one_out,
            uses_gradients=False,
        ),
        TokenMethod("random", "random scores, the yardstick", "control", _random, uses_gradients=False),
    )
}
DEFAULT_METHOD = "gim"


def methods_named(names: str | Sequence[str]) -> list[TokenMethod]:
    """Methods by their names, comma-separated or in a list.

    Raises:
        OptionError: an unknown one, one given twice, or none.
    """
    if isinstance(names, Mapping) or not isinstance(names, Iterable):
        raise OptionError(f"Methods are names, comma-separated or in a list, not {names!r:.80}.")
    parts = names.split(",") if isinstance(names, str) else list(names)
    for part in parts:
        if not isinstance(part, str):
            raise OptionError(f"There is no token attribution method {part!r:.80}. {instead_of('', METHODS)}")
    chosen = [part.strip() for part in parts if part.strip()]
    for name in chosen:
        if name not in METHODS:
            raise OptionError(f"There is no token attribution method {name!r}. {instead_of(name, METHODS)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionError(f"--methods takes at least one method, each once; not {names!r}.")
    return [METHODS[name] for name in chosen]


def require_suited(method: TokenMethod, model: Model) -> None:
    """Refuse a model for which a method is not defined.

    Raises:
        ModelError: quantised weights for a method that takes gradients, or gated MLPs for DeepLIFT.
    """
    if method.uses_gradients and model.quantisation:
        raise ModelError(
            f"{method.name} takes gradients, and weights of {model.name} are quantised ({model.quantisation}). Load "
            "the full-precision checkpoint, or use leave-one-out, which only runs the model."
        )
    if method.needs_ungated:
        require_ungated(model)
