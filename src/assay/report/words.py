"""Sentences that terminal and page share."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.data.baseline import Baseline, standard_error
from assay.data.pairs import Answer, PromptPairs
from assay.methods.registry import METHODS, PARAMETERS
from assay.model import Model
from assay.scores import Scores

MEMBERS_SHOWN = 4
SUMS = ("log-prob", "log-prob-diff", "prob-diff", "kl")
"""Metrics that add up over an answer's tokens (or multiply their probabilities)."""
DIRECTIONS = {
    "denoise": "Each component's clean activation is put into the corrupted run; positive = it restores the answer.",
    "noise": "Each component's corrupted activation is put into the clean run; importance is the drop it causes.",
    "ablation": "Each component is ablated in the clean run; importance is the drop this causes.",
}


KIND_WORDS = {
    "mlps": "MLPs",
    "attention": "attention layers",
    "neurons-pre": "neurons",
    "residual-pre": "residual stream",
    "residual-mid": "residual stream",
    "residual-post": "residual stream",
    "q": "queries",
    "k": "keys",
    "v": "values",
}


def question(scores: Scores) -> str:
    kinds = list(dict.fromkeys(KIND_WORDS.get(c.site, c.site) for c in scores.components))
    listed = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    verb = "drives" if kinds == ["residual stream"] else "drive"
    return f"Which {listed} of {scores.provenance['model']['name']} {verb} {scores.pairs.behaviour}?"


def answer(scores: Scores) -> str:
    """The result in a sentence or two, with its unit and how it was obtained."""
    if scores.unit == "none":
        return "These scores are random: a yardstick for other methods, not a result."
    size = np.abs(scores.importance)
    best = int(size.argmax())
    first = scores.components[best].name
    error = standard_error(scores.values[best])
    doubt = "within two standard errors of 0" if size[best] <= 2 * error else ""
    if only_ranks(scores):
        return (
            f"Ranked first of {len(size)} components: {first} (by gradients under the backward rules "
            f"{scores.configuration['rules']}, not by the effect of patching it{doubt and f'; its score is {doubt}'})."
        )
    k = min(10, len(size))
    total = size.sum()
    share = f"{np.sort(size)[::-1][:k].sum() / total:.0%}" if total > 0 else "none"
    how = "every value was measured by intervention" if scores.exact else "estimates, none checked by intervention"
    if not scores.estimates_effect:
        how = "on chosen paths, not the whole effect of patching it"
    return (
        f"The {k} largest of {len(size)} components carry {share} of the summed absolute effect on {scores.metric}; "
        f"the largest is {first} with {scores.importance[best]:+.3g} {scores.unit} "
        f"({how}{doubt and f'; that is {doubt}'})."
    )


def only_ranks(scores: Scores) -> bool:
    """Whether gradients went back under backward rules, so that sizes mean nothing."""
    return "rules" in scores.configuration


def scale(scores: Scores) -> str:
    """What an axis of importances counts in."""
    return "score" if only_ranks(scores) else scores.unit


def method(scores: Scores) -> str:
    """What was done, with its parameters."""
    given = [f"{name} {scores.configuration[name]}" for name in PARAMETERS if name in scores.configuration]
    named = f"{scores.method} ({', '.join(given)})" if given else scores.method
    known = METHODS.get(scores.method)
    if known and only_ranks(scores) and known.estimates_effect:
        return f"Method {named}: {known.description} without rules; under these it ranks, and estimates no effect."
    return f"Method {named}: {known.description}." if known else f"Method {named}."


def has_shares(scores: Scores) -> bool:
    """Whether clean - corrupted is what the importances are shares of: only where one is patched into the other."""
    if only_ranks(scores):
        return False
    has_sign = scores.unit != "none" and scores.signed
    return has_sign and scores.direction != "ablation" and scores.baseline.difference != 0


def meaning(scores: Scores) -> str:
    """What the numbers are: direction, unit, error."""
    if scores.unit == "none":
        return "Standard normal draws; they have no unit and no direction."
    if scores.method == "path-patching":
        return (
            f"Only the paths to {scores.configuration['receivers']} carry the component's change. "
            f"{DIRECTIONS[scores.direction]} In {scores.unit} of {scores.metric}, mean over {len(scores.pairs)} pairs."
        )
    if scores.method == "direct-effect":
        return (
            "Direct effect: the change that the component's own contribution makes at the unembedding, everything "
            "between left alone and the final norm's factor frozen at the base run. "
            f"In {scores.unit} of {scores.metric}, mean over {len(scores.pairs)} prompt pairs."
        )
    if only_ranks(scores):
        rules = scores.configuration["rules"]
        return (
            f"{DIRECTIONS[scores.direction]} By a backward pass under the rules {rules}, so sizes mean nothing by "
            f"themselves: these scores rank components, and estimate no effect. Mean over {len(scores.pairs)} prompt "
            "pairs; ± is the standard error over prompts."
        )
    size = "" if scores.signed else "the absolute effect of each pair, without a sign, "
    return (
        f"{DIRECTIONS[scores.direction]} Importance is {size}in {scores.unit} of {scores.metric}, mean over "
        f"{len(scores.pairs)} prompt pair{'s' if len(scores.pairs) > 1 else ''}; ± is the standard error over prompts"
        f"{'' if len(scores.pairs) > 1 else ' (none for a single one)'}."
    )


def beside(scores: Scores) -> str | None:
    """What stands beside the values, where something does."""
    if scores.stderr_probes is not None:
        return (
            "± probes is the standard error that comes from the random probes alone. It is part of ±, and more probes "
            "(--probes, or --precision) make it smaller."
        )
    if scores.gap is not None:
        effect = np.abs(scores.values - scores.gap).sum()
        total = f"{np.abs(scores.gap).sum() / effect:.2g}" if effect else "n/a"
        return (
            "gap is the completeness gap, estimate - exact effect: all that the rule misses. Its summed absolute value "
            f"over that of the exact effects, over components and prompts: {total}."
        )
    return None


def next_step(scores: Scores) -> str | None:
    """What to do about numbers that nothing has checked."""
    if only_ranks(scores):
        return (
            "Next: assay screen, or --method activation-patching, measures what these scores only rank. "
            "± says nothing about how far the ranking is that of effects."
        )
    if scores.exact or not scores.estimates_effect:
        return None
    return (
        "Next: --method activation-patching measures what these only estimate. Estimates can be far off, "
        "even in sign, most of all in early layers; ± says nothing about that."
    )


def verdicts(scores: Scores) -> str:
    """What the verdicts in the table mean."""
    if scores.exact:
        return "verified: measured by intervention."
    if scores.estimates_effect:
        return "unresolved: an estimate that nothing has checked."
    return "none: no estimate of what patching the component does, so there is nothing to verify."


def duplicates(pairs: PromptPairs) -> str | None:
    """A warning if prompts repeat, which makes errors look smaller than they are."""
    repeated = len(pairs) - len({(pair.clean, pair.corrupted, pair.answer, pair.wrong_answer) for pair in pairs})
    if not repeated:
        return None
    return f"Caution: {repeated} of {len(pairs)} pairs repeat others, so the standard errors are too small."


def quantised(scores: Scores) -> str | None:
    """A warning if weights are quantised: the numbers are about the model as it is then."""
    how = scores.provenance["model"].get("quantisation")
    if how is None:
        return None
    return f"Weights are quantised ({how}): effects are those of the quantised model, not of the original."


def shown(answer: Answer | None) -> str:
    """An answer as it is; of a set, each member in quotes, the middle ones of many left out."""
    if answer is None or isinstance(answer, str):
        return answer or ""
    quoted = [repr(text) for text in answer]
    if len(quoted) > MEMBERS_SHOWN + 1:
        half = MEMBERS_SHOWN // 2
        return f"{' or '.join(quoted[:half])} or ... {' or '.join(quoted[-half:])} ({len(quoted)} in all)"
    return " or ".join(quoted)


def cost(scores: Scores) -> str:
    return spent(scores.cost)


def spent(cost: dict[str, Any]) -> str:
    """What a run took, as its folder keeps it."""
    line = f"{cost['forward_equivalents']:.1f} forward-equivalents (the baseline's included), {time(cost)}"
    if cost["interventions"]:
        line += f", {cost['interventions']} patched sequences"
    return line


def time(cost: dict[str, Any]) -> str:
    """Seconds of computing; and by the clock, where these are not about the same."""
    computing, clock = sum(cost["seconds"].values()), cost.get("clock")  # run folders of before had none
    if clock is None or (clock["processes"] == 1 and not clock["went_on"]):
        return f"{computing:.1f} s"
    over = f" over {clock['processes']} processes" if clock["processes"] > 1 else ""
    sittings, last = (" in all sittings", " in the last") if clock["went_on"] else ("", "")
    return f"{computing:.1f} s of computing{over}{sittings}, {clock['seconds']:.1f} s by the clock{last}"


def adapted(scores: Scores) -> str | None:
    """A note if adapters are in the model: the numbers are about the model with them."""
    adapters = scores.configuration["model"].get("adapters")
    if not adapters:
        return None
    return f"PEFT adapters are in the model: {', '.join(adapters)}. Effects are those of the model in that state."


def unequal_answers(scores: Scores) -> str | None:
    """A warning if a metric that sums over tokens met answers of unequal length."""
    lengths = scores.provenance.get("answer_tokens", ())
    if len(lengths) < 2 or scores.metric not in SUMS:
        return None
    return (
        f"Caution: answers have {min(lengths)} to {max(lengths)} tokens, and {scores.metric} adds up over tokens. "
        "Longer answers have lower sums for that alone: compare pairs, or an answer with its wrong answer, with care."
    )


def cautions(scores: Scores) -> tuple[str, ...]:
    """What a reader of the numbers should know first."""
    found = (duplicates(scores.pairs), unequal_answers(scores), quantised(scores), adapted(scores))
    return tuple(filter(None, found))


def caution(baseline: Baseline, metric: str) -> str | None:
    """A warning if the model mostly fails at the task that its parts are scored for."""
    outside = ""
    if metric == "prob-diff":
        outside = (
            " Where answers are sets, a token outside both counts as wrong: in greater-than read digit by digit, so "
            "does the first year's own tens digit, with which later years begin too."
        )
    spread = baseline.clean.std()
    if baseline.clean_right.mean() < 0.5 and abs(baseline.difference) < 0.2 * spread:
        return (
            f"Caution: the difference between clean and corrupted prompts, {baseline.difference:.2g}, is small against "
            f"the spread over prompts, {spread:.2g}, and the model rarely gives the right answer. There is hardly any "
            "behaviour to attribute." + outside
        )
    if baseline.clean_right.mean() >= 0.5:
        return None
    return (
        f"Caution: greedy decoding answers only {accuracy(baseline.clean_right)} of the clean prompts right. The "
        "scores say what moves the metric, not how the model does the task." + outside
    )


def accuracy(values: np.ndarray) -> str:
    return f"{values.mean():.0%}"


def describe(model: Model) -> str:
    """The model in a line."""
    described = model.origin.get("description")
    return f"{model!r}" + (f"\n{described}" if described else "")


def describe_origin(scores: Scores) -> str:
    """The model by its name and, where known, what is behind the name."""
    model = scores.provenance["model"]
    described = model["origin"].get("description")
    return f"{model['name']} ({described})" if described else str(model["name"])


def kicker(provenance: dict[str, Any], pairs: PromptPairs, *more: str) -> str:
    """Model, task and prompts in a line, above a page's question."""
    name = provenance.get("model", {}).get("name", "a model")
    how_many = f"{len(pairs)} prompt pair{'s' if len(pairs) > 1 else ''}"
    return " · ".join([name, pairs.task or "own prompts", how_many, *filter(None, more)])


def stages(cost: dict[str, Any]) -> list[list[str]]:
    """Rows of work and time: stage, forward-equivalents, seconds.

    Args:
        cost: of a run, whose seconds are by stage and whose work is in all; or such costs by name, at any depth.
    """
    if "seconds" in cost:
        return [*([name, "", f"{seconds:.1f}"] for name, seconds in cost["seconds"].items()), ["all", *_in_all(cost)]]
    rows = []
    for name, of in cost.items():
        if "seconds" in of:
            rows.append([name, *_in_all(of)])
        else:
            rows += [[f"{name}: {stage}", *spent] for stage, *spent in stages(of)]
    return rows


def _in_all(cost: dict[str, Any]) -> list[str]:
    seconds = cost["seconds"]
    total = sum(seconds.values()) if isinstance(seconds, dict) else seconds
    return [f"{cost['forward_equivalents']:.1f}", f"{total:.1f}"]
