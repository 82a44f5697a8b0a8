"""Five circuits written by hand, with the prompts that run through them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from assay.circuits.graph import Flags, Graph
from assay.circuits.known.weights import HandWritten
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import OptionError, instead_of
from assay.model import Model

LETTERS = list("abcdefghij")
START, BLANK, MARK, ASK = "^", "-", "!", "?"
"""In front of all prompts, and where heads look that have nothing to do; nothing; what sets off the pair that cancels;
where the answer follows."""
DIGITS = ["1", "2", "3"]
WORDS = [START, BLANK, MARK, ASK, *DIGITS, *LETTERS]
POSITIONS = 8
SHARP = 40.0
"""Gain of attention: the softmax is 1 where codes agree, to rounding."""
PAIRS = 16


@dataclass(frozen=True)
class KnownCircuit:
    """A model, prompts, and the edges that carry its behaviour."""

    name: str
    description: str
    model: Model
    pairs: PromptPairs
    """The model prefers the answer on the clean prompt, so an edge whose patch hurts has a score above 0. What works
    against the answer, such as half of a pair that cancels, has one below 0: rank by absolute score to find it too."""
    edges: tuple[str, ...]

    @property
    def flags(self) -> Flags:
        """(E,) whether an edge of the model's graph is in the circuit."""
        graph = Graph.of(self.model)
        found = np.zeros(graph.n_edges, bool)
        found[[graph.edge(name) for name in self.edges]] = True
        return found


def known_circuit(name: str, n: int = PAIRS, seed: int = 0) -> KnownCircuit:
    """A known circuit by name, with n prompt pairs.

    Raises:
        OptionError: there is none of that name.
    """
    if name not in KNOWN_CIRCUITS:
        raise OptionError(f"There is no known circuit {name!r}. {instead_of(name, KNOWN_CIRCUITS)}")
    make = KNOWN_CIRCUITS[name]
    draw = random.Random(seed)
    model, edges, pair = make()
    pairs = PromptPairs(tuple(pair(draw) for _ in range(n)), task=name, metric="logit-diff")
    return KnownCircuit(name, " ".join((make.__doc__ or "").split()), model, pairs, edges)


MakePair = Callable[[random.Random], PromptPair]
Made = tuple[Model, tuple[str, ...], MakePair]


def _code(mapping: dict[int, int], size: int, default: int | None = None) -> Tensor:
    """(size, size) that gives each code another one."""
    found = torch.zeros(size, size)
    for code in range(size):
        target = mapping.get(code, default)
        if target is not None:
            found[code, target] = 1
    return found


def _letters(words: list[str] = LETTERS) -> Tensor:
    """(V, V) the codes of some words; the others' are 0."""
    return _code({WORDS.index(word): WORDS.index(word) for word in words}, len(WORDS))


def _induction() -> Made:
    """A head moves each token's code to the next position; a later head finds where the last token was before and
    copies what followed it."""
    model = HandWritten(WORDS, POSITIONS, 2, 2, {"previous": len(WORDS), "out": len(WORDS)})
    back = _code({position: position - 1 for position in range(1, POSITIONS)}, POSITIONS, 0)
    letters = model.read("token", _letters())
    model.set_head(0, 0, model.read("position", back), model.read("position"), letters, "previous", SHARP)
    model.set_head(1, 0, letters, model.read("previous"), letters, "out", SHARP)

    def pair(draw: random.Random) -> PromptPair:
        a, b, c, d, *other = draw.sample(LETTERS, 8)
        e, f, g, h = other
        return PromptPair(f"{START} {a} {b} {c} {d} {a}", f"{START} {e} {f} {g} {h} {e}", f" {b}", f" {f}")

    edges = ("input->a0.h0<v>", "a0.h0->a1.h0<k>", "input->a1.h0<q>", "input->a1.h0<v>", "a1.h0->logits")
    return model.finished("induction", 4.0), edges, pair


def _redundant() -> Made:
    """Two heads copy the same token, and an MLP passes on no more than one of them needs: each stands in for the
    other."""
    size = len(WORDS)
    model = HandWritten(WORDS, POSITIONS, 1, 3, {"moved": size, "out": size}, hidden=2 * size)
    ask = _code({4: 1}, POSITIONS, 0)
    for head in (0, 1):
        value = model.read("token", _letters())
        model.set_head(0, head, model.read("position", ask), model.read("position"), value, "moved", SHARP)
    for code in range(size):
        model.set_neuron(0, 2 * code, {("moved", code): 1}, 0, {("out", code): 1})
        model.set_neuron(0, 2 * code + 1, {("moved", code): 1}, -1, {("out", code): -1})

    def pair(draw: random.Random) -> PromptPair:
        a, b, c, wrong = draw.sample(LETTERS, 4)
        return PromptPair(f"{START} {a} {b} {c} {ASK}", f"{START} {BLANK} {b} {c} {ASK}", f" {a}", f" {wrong}")

    edges = ("input->a0.h0<v>", "input->a0.h1<v>", "a0.h0->m0", "a0.h1->m0", "m0->logits")
    return model.finished("redundant-movers", 4.0), edges, pair


def _saturated() -> Made:
    """The last token tells a head which position to copy; its softmax is so sharp that no gradient gets through."""
    model = HandWritten(WORDS, POSITIONS, 1, 2, {"out": len(WORDS)})
    choose = torch.zeros(len(WORDS), POSITIONS)
    for number, digit in enumerate(DIGITS, 1):
        choose[WORDS.index(digit), number] = 1
    value = model.read("token", _letters())
    model.set_head(0, 0, model.read("token", choose), model.read("position"), value, "out", SHARP)

    def pair(draw: random.Random) -> PromptPair:
        letters, (first, second) = draw.sample(LETTERS, 3), draw.sample(range(3), 2)
        front = f"{START} {' '.join(letters)}"
        return PromptPair(
            f"{front} {DIGITS[first]}", f"{front} {DIGITS[second]}", f" {letters[first]}", f" {letters[second]}"
        )

    return model.finished("saturated-head", 4.0), ("input->a0.h0<q>", "a0.h0->logits"), pair


def _cancelling() -> Made:
    """One head copies the answer; two others write large opposite amounts that leave no trace together, but alone swell
    the norm before the logits."""
    model = HandWritten(WORDS, POSITIONS, 1, 3, {"big": 1, "out": len(WORDS)}, epsilon=1e-5)
    value = model.read("token", _letters())
    ask = model.read("position", _code({4: 1}, POSITIONS, 0))
    model.set_head(0, 0, ask, model.read("position"), value, "out", SHARP)
    at_mark = model.read("position", _code({4: 2}, POSITIONS, 0))
    for head, amount in ((1, 10.0), (2, -10.0)):
        size = torch.zeros(len(WORDS), 1)
        size[WORDS.index(MARK)] = amount
        model.set_head(0, head, at_mark, model.read("position"), model.read("token", size), "big", SHARP)

    def pair(draw: random.Random) -> PromptPair:
        a, b, c = draw.sample(LETTERS, 3)
        return PromptPair(f"{START} {a} {MARK} {c} {ASK}", f"{START} {b} {BLANK} {c} {ASK}", f" {a}", f" {b}")

    return model.finished("cancelling-pair", 4.0), ("input->a0.h0<v>", "a0.h0->logits"), pair


def _reversal() -> Made:
    """Three letters are read backwards: one head gives the first letter of the answer, another the two that follow."""
    model = HandWritten(WORDS, POSITIONS, 1, 3, {"out": len(WORDS)})
    for head, codes in ((0, {4: 3}), (1, {5: 2, 6: 1})):
        query = model.read("position", _code(codes, POSITIONS, 0))
        value = model.read("token", _letters())
        model.set_head(0, head, query, model.read("position"), value, "out", SHARP)

    def pair(draw: random.Random) -> PromptPair:
        drawn, said = draw.sample(LETTERS, 6), draw.randrange(3)
        prompts = []
        for letters in (drawn[:3], drawn[3:]):
            answer = letters[::-1][:said]
            prompts.append(" ".join([START, *letters, ASK, *answer]))
        return PromptPair(prompts[0], prompts[1], f" {drawn[2 - said]}", f" {drawn[5 - said]}")

    edges = ("input->a0.h0<v>", "input->a0.h1<v>", "a0.h0->logits", "a0.h1->logits")
    return model.finished("reversal", 4.0), edges, pair


KNOWN_CIRCUITS: dict[str, Callable[[], Made]] = {
    "induction": _induction,
    "redundant-movers": _redundant,
    "saturated-head": _saturated,
    "cancelling-pair": _cancelling,
    "reversal": _reversal,
}
