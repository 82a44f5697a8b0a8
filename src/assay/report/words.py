"""Sentences that terminal and page share."""

from __future__ import annotations

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
    k = min(10, len(size))
    total = size.sum()
    share = f"{np.sort(size)[::-1][:k].sum() / total:.0%}" if total > 0 else "none"
    first = scores.components[int(size.argmax())].name
    value = scores.importance[int(size.argmax())]
    how = "every value was measured by intervention" if scores.exact else "estimates, none checked by intervention"
    summed = "summed absolute effect"
    if (rules := scores.configuration.get("rules")) is not None:
        how = f"by gradients under the backward rules {rules}, not the effect of patching it"
        summed = "summed absolute score"
    elif not scores.estimates_effect:
        how = "on chosen paths, not the whole effect of patching it"
    best = int(size.argmax())
    error = standard_error(scores.values[best])
    doubt = "; that is within two standard errors of 0" if size[best] <= 2 * error else ""
    return (
        f"The {k} largest of {len(size)} components carry {share} of the {summed} on {scores.metric}; "
        f"the largest is {first} with {value:+.3g} {scores.unit} ({how}{doubt})."
    )


def method(scores: Scores) -> str:
    """What was done, with its parameters."""
    given = [f"{name} {scores.configuration[name]}" for name in PARAMETERS if name in scores.configuration]
    named = f"{scores.method} ({', '.join(given)})" if given else scores.method
    known = METHODS.get(scores.method)
    return f"Method {named}: {known.description}." if known else f"Method {named}."


def has_shares(scores: Scores) -> bool:
    """Whether clean - corrupted is what the importances are shares of: only where one is patched into the other."""
    if "rules" in scores.configuration:
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
    if (rules := scores.configuration.get("rules")) is not None:
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


def next_step(scores: Scores) -> str | None:
    """What to do about numbers that nothing has checked."""
    if scores.exact or not scores.estimates_effect:
        return None
    return (
        "Next: --method activation-patching measures what these only estimate. Estimates can be far off, "
        "even in sign, most of all in early layers; ± says nothing about that."
    )


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
    spent = scores.cost
    seconds = sum(spent["seconds"].values())
    line = f"{spent['forward_equivalents']:.1f} forward-equivalents (the baseline's included), {seconds:.1f} s"
    if spent["interventions"]:
        line += f", {spent['interventions']} patched sequences"
    return line


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
