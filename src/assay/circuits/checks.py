"""What must hold of scores before circuits are made of them: their model, their level, and the prompts behind them."""

from __future__ import annotations

from collections import defaultdict

from assay.circuits.edges import EdgeScores
from assay.data.chat import as_chat
from assay.data.pairs import PromptPair, PromptPairs
from assay.errors import ModelError, OptionError
from assay.model import Model
from assay.scores import Scores


def require_model(model: Model, scores: EdgeScores | Scores) -> None:
    """Refuse (`ModelError`) scores that were made on other weights, where they say on which."""
    of = scores.provenance.get("model") or {}
    made_on = of.get("weights_sha256")
    if made_on is not None and made_on != model.weight_hash:
        raise ModelError(
            f"These scores were made on {of.get('name', 'a model')} with other weights than {model.name} has here (the "
            "same weights in another dtype are others too). A circuit is of the model that its scores are of."
        )


def level_of(scores: EdgeScores | Scores) -> str:
    """edge, node or neuron."""
    if isinstance(scores, EdgeScores):
        return "edge"
    return "neuron" if any(component.site == "neurons" for component in scores.components) else "node"


def require_level_of(level: str, scores: EdgeScores | Scores) -> None:
    """Refuse (`OptionError`) scores of another level."""
    if level_of(scores) != level:
        raise OptionError(
            f"These are scores of {level_of(scores)}s, which choose no circuit of {level}s. Use the level "
            f"{level_of(scores)!r}, or scores of {level}s."
        )


def shared_prompts(model: Model, pairs: PromptPairs, seen: PromptPairs | None, *, chat: bool) -> int | None:
    """How many distinct prompts of the pairs, clean or corrupted, the scores were made on too; None if unknown.

    Args:
        chat: scores keep the prompts as they were in the model's chat template.
    """
    if seen is None:
        return None
    known = {prompt for pair in seen for prompt in (pair.clean, pair.corrupted)}
    rendered = as_chat(model, pairs) if chat else pairs
    return len(
        {
            prompt
            for pair, as_run in zip(pairs, rendered, strict=True)
            for prompt, run in ((pair.clean, as_run.clean), (pair.corrupted, as_run.corrupted))
            if prompt in known or run in known
        }
    )


def prompts_of(pair: PromptPair) -> frozenset[str]:
    """Both prompts, whichever is the clean one: a pair that is swapped shows a model nothing new."""
    return frozenset((pair.clean, pair.corrupted))


def halves(pairs: PromptPairs) -> tuple[list[PromptPair], list[PromptPair]]:
    """The first half of the pairs and the others; no prompt is in both, where that leaves a quarter for each.

    Pairs that share a prompt, directly or by way of others, stay together; groups go to the first half as they come,
    while there is room.
    """
    together: defaultdict[int, list[int]] = defaultdict(list)
    for number, group in enumerate(_groups(pairs)):
        together[group].append(number)
    room, first = len(pairs) // 2, set[int]()
    for numbers in together.values():
        if len(first) + len(numbers) <= room:
            first.update(numbers)
    if 4 * len(first) < len(pairs):
        first = set(range(room))
    listed = list(pairs)
    return [listed[i] for i in sorted(first)], [pair for i, pair in enumerate(listed) if i not in first]


def _groups(pairs: PromptPairs) -> list[int]:
    """Of each pair, the number of the first that it is connected with by prompts."""
    parent = list(range(len(pairs)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    first_with: dict[str, int] = {}
    for number, pair in enumerate(pairs):
        for prompt in (pair.clean, pair.corrupted):
            a, b = root(number), root(first_with.setdefault(prompt, number))
            parent[max(a, b)] = min(a, b)
    return [root(number) for number in range(len(pairs))]
