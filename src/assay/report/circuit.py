"""A tested circuit in words; terminal and page share them."""

from __future__ import annotations

import numpy as np

from assay.circuits.edges import EdgeScores
from assay.circuits.faithfulness import CircuitValues, Estimate
from assay.circuits.found import FoundCircuit
from assay.circuits.naming import item_name, items_in, nodes_of
from assay.data.baseline import standard_error
from assay.report.words import accuracy
from assay.scores import Scores

ITEMS = {"edge": "edges", "node": "nodes", "neuron": "nodes and neurons"}
ONE = {"edge": "edge", "node": "node", "neuron": "node or neuron"}
CARRIED = {
    "patch": "carries what it carries on the corrupted prompt",
    "zero": "carries nothing",
    "mean": "carries its mean over reference prompts",
}
VERDICTS = {
    "verified": "measured by intervention",
    "unresolved": "estimates that nothing has checked",
    "none": "no estimates of an effect",
}
"""What is true of all scores of a method."""
NAMED = 12
"""Nodes that are named in a sentence."""


def question(found: FoundCircuit) -> str:
    model = found.provenance.get("model", {}).get("name", "the model")
    return f"Which {ITEMS[found.level]} of {model} carry {found.evaluated.behaviour} by themselves?"


def answer(found: FoundCircuit) -> list[str]:
    """The chosen circuit, then CPR and CMD."""
    many = f"{found.setting.get('kept', int(found.kept.sum()))} of {found.setting.get('scored', len(found.kept))}"
    nodes = nodes_of(found)[:-1]
    inside = items_in(found) if found.level == "neuron" else nodes
    named = ", ".join(inside[:NAMED]) + (f" and {len(inside) - NAMED} more" if len(inside) > NAMED else "")
    between = f", from {len(nodes)} nodes," if found.level == "edge" else ""
    f = found.faithfulness
    sentences = [
        f"{many} {ITEMS[found.level]}{between} have a faithfulness of {interval(f)}: {share_of(f.value)}.",
        f"{'Nodes' if found.level == 'edge' else 'In the circuit'}: {named}. {how(found)}",
    ]
    if _is_everything(found) and not found.setting.get("size_given", True):
        sentences.insert(
            0, "No circuit smaller than the model reached a faithfulness of 0.5; this is the model itself."
        )
    if len(found.values.values.T) > 1 and not _is_everything(found):
        left_out = found.values.estimates(seed=found.seed)[1]
        sentences.append(f"What it leaves out has by itself {interval(left_out)}: near 0, that does nothing alone.")
    if found.random is None:
        yardstick = "random circuits have about .25"
    else:
        yardstick = f"random circuits here {interval(found.random.curve.cpr)}"
    sentences += [
        f"All sizes together: CPR {interval(found.cpr)}, the area under faithfulness over size, circuits of highest "
        f"score (a circuit that is the model at every size has .999, {yardstick}). CMD {interval(found.cmd)}, the area "
        "between that and 1, circuits of highest absolute score (0 is best)."
    ]
    if max(e.value for curve in (found.signed, found.absolute) for e in curve.curve.faithfulness) > 1.005:
        sentences.append(
            "Values above 1 are no error: such a circuit does the task better than the model, because what works "
            "against the answer is left out."
        )
    return sentences


def _is_everything(found: FoundCircuit) -> bool:
    return bool(found.kept.all())


def share_of(f: float) -> str:
    return f"by themselves they give {f:.0%} of what the model has over the empty circuit"


def how(found: FoundCircuit) -> str:
    """How the circuit was chosen."""
    said = found.setting
    by = {"top": "by signed score", "greedy": "by absolute score from the logits up"}.get(
        said.get("select", ""), "by absolute score"
    )
    flatters = "Its size was chosen on the prompts that it is measured on, which flatters it there."
    if found.target is not None:
        return f"Chosen {by}: the smallest found that reaches {found.target:g}. {flatters}"
    if said.get("threshold") is not None:
        return f"Chosen: every absolute score of at least {said['threshold']:g}."
    if said.get("size_given", True):
        return f"Chosen {by}: --size {found.size:g} of what was scored."
    curve = (found.signed if said.get("select") == "top" else found.absolute).curve
    reached = zip(curve.sizes, curve.faithfulness, strict=True)
    again = [f"{size:g}" for size, f in reached if size > (found.size or 0) and f.value < 0.5]
    falls = f" It falls below that again at {', '.join(again)}." if again else ""
    return (
        f"Chosen {by}: {found.size:g} of what was scored, the smallest size of the curve with a faithfulness of at "
        f"least 0.5.{falls} {flatters}"
    )


def metric_sentence(found: FoundCircuit) -> str | None:
    """The metric, and why it was chosen."""
    if not found.setting:
        return None
    metric = found.setting["metric"]
    return f"Metric {metric['name']}: {metric['description']} ({found.setting['why']})."


def ends_rows(values: CircuitValues, unit: str, name: str) -> list[list[str]]:
    """The two runs that faithfulness is measured between."""
    return [[f"{name} ({unit})", *(plus_minus(x) for x in (values.full, values.empty, values.full - values.empty))]]


def right_row(found_right: tuple[np.ndarray, np.ndarray], ablation: str) -> list[str]:
    """How often the model is right; of an empty circuit that is no prompt's own run nobody counted."""
    clean, corrupted = found_right
    return ["greedy answer right", accuracy(clean), accuracy(corrupted) if ablation == "patch" else "", ""]


ENDS_COLUMNS = ["", "the model (all kept)", "empty circuit", "difference"]


def ends_table(found: FoundCircuit) -> list[list[str]]:
    """Can the model do the task, and what is there to carry?"""
    if found.baseline is None:
        return []
    metric, baseline = found.setting["metric"], found.baseline
    right = right_row((baseline.clean_right, baseline.corrupted_right), found.setting["ablation"])
    return [*ends_rows(found.values, metric["unit"], metric["name"]), right]


def split_sentence(found: FoundCircuit) -> str:
    """Which prompts were for what."""
    seen, n = found.scores.pairs, len(found.evaluated)
    if seen is None:
        return (
            f"Circuits ran on {n} pairs. The file does not say on which prompts its scores were made, so whether any "
            "of these is among them cannot be known."
        )
    shared, caveat = found.shared_prompts, found.signed.curve.caveat
    alone = "and no prompt" if not shared else f"but {shared} single {'prompt is' if shared == 1 else 'prompts are'}"
    said = f"Scores were made on {len(seen)} pairs, circuits ran on {n} others: no pair is in both, {alone}."
    return said if caveat is None else f"{said} {caveat}"


def label_sentence(found: FoundCircuit) -> str:
    """What was measured and what was not."""
    scores = f"Scores ({found.scores.method}): {found.label}."
    return f"{scores} Faithfulness: measured by running circuits; intervals are bootstraps over prompts (95 %)."


def meaning_of_faithfulness(found: FoundCircuit) -> str:
    carried = CARRIED[found.setting.get("ablation", "patch")]
    path = " Path: edges on a path from the input to the logits, which are what is run." if _prunes(found) else ""
    return (
        f"f = (circuit − empty) / (model − empty), of means over prompts, never clipped. Outside the circuit every "
        f"{ONE[found.level]} {carried}. Size: share of what was scored; sizes that hold nothing are left out.{path}"
    )


def meaning_of_scores(found: FoundCircuit) -> str:
    """Unit, sign and error of the scores."""
    scores, one = found.scores, ONE[found.level]
    if not scores.estimates_effect:
        sign = f"Scores rank the {ITEMS[found.level]}; they estimate no effect."
    else:
        exact = "" if scores.exact else "an estimate of "
        carries = CARRIED[found.setting.get("ablation", "patch")] if found.level == "edge" else CARRIED["patch"]
        sign = (
            f"Score: {exact}what the metric loses ({scores.unit}) when that {one} alone {carries}, mean over prompts. "
            "Positive: it works for the answer; negative: against it."
        )
    means_only = isinstance(scores, EdgeScores) and len(scores.values) == 1
    return f"{sign} ±: " + (
        "n/a, since the file holds means alone." if means_only else "standard error of the mean over prompts."
    )


def cost_sentence(found: FoundCircuit) -> str:
    """By stage; a forward-equivalent is one pass of the stage's own prompts."""
    said = {"ends": "model and empty circuit", "scores": "scores", "curves": "curves", "chosen": "the chosen circuit"}
    said["search"] = "search for the chosen circuit"
    parts = [
        f"{said.get(name, name)} {cost['forward_equivalents']:.1f} ({cost['seconds']:.1f} s)"
        for name, cost in found.costs.items()
    ]
    if not parts:
        return ""
    if "scores" not in found.costs:
        parts.insert(1, "scores made before, not counted here")
    total = sum(cost["seconds"] for cost in found.costs.values())
    return f"Cost in forward-equivalents: {', '.join(parts)}; {total:.1f} s in all."


def next_step(found: FoundCircuit, folder: str = "FOLDER") -> str:
    """What to do with the result."""
    given = found.request
    task = given.get("task", {}).get("name") or "..."
    model = found.provenance.get("model", {}).get("name", "MODEL")
    if found.level == "edge" and found.target is None:
        return (
            f"Next: assay circuit {model} --task {task} --from {folder} --faithfulness 0.85 finds the smallest circuit "
            "that carries so much; with another --seed, whether it holds on other prompts."
        )
    if found.level != "edge":
        return (
            "Next: --level edge says by which edges these work; --method activation-patching measures each by itself."
        )
    return "Next: --from with another --seed says whether the circuit holds on prompts that did not choose its size."


def curve_columns(found: FoundCircuit) -> list[str]:
    columns = ["size", ITEMS[found.level]]
    if _prunes(found):
        columns += ["path", "f, by score", "path", "f, by |score|"]
    else:
        columns += ["f, by score", "f, by |score|"]
    return (
        columns + ["f, random"] * (found.random is not None) + ["f, left out"] * (found.absolute.complement is not None)
    )


def curve_rows(found: FoundCircuit) -> list[list[str]]:
    """Size, how many are kept and lie on a path, and faithfulness by both rankings, of random circuits, and of what
    those by absolute score leave out."""
    curves = found.curves
    estimates = {name: curve.curve.faithfulness for name, curve in curves.items()}
    left_out = found.absolute.complement and found.absolute.complement.estimates(seed=found.seed)
    rows = []
    for i, size in enumerate(found.signed.curve.sizes):
        if not found.signed.counts[i]:
            continue
        row = [f"{size:g}", str(found.signed.counts[i])]
        for name, curve in curves.items():
            path = [str(curve.pruned_counts[i])] if _prunes(found) and name != "random" else []
            row += [*path, short(estimates[name][i])]
        rows.append(row + ([short(left_out[i])] if left_out else []))
    return rows


def _prunes(found: FoundCircuit) -> bool:
    """Whether pruning leaves out anything anywhere."""
    return any(found.curves[name].counts != found.curves[name].pruned_counts for name in ("signed", "absolute"))


def score_rows(found: FoundCircuit, top: int) -> list[list[str]]:
    """The largest absolute scores: name, score, its error, whether it is in the chosen circuit."""
    if isinstance(found.scores, EdgeScores):
        inside = set(items_in(found))
        return [
            [row.edge, f"{row.importance:+.4g}", _error(row.stderr_prompts), "yes" if row.edge in inside else "no"]
            for row in found.scores.top(top).itertuples()
        ]
    return _rows_of_nodes(found.scores, set(items_in(found)), top)


def _rows_of_nodes(scores: Scores, inside: set[str], top: int) -> list[list[str]]:
    rows = []
    for i in np.argsort(-np.abs(scores.importance), kind="stable")[:top]:
        name, error = item_name(scores.components[i]), standard_error(scores.values[i])
        rows.append([name, f"{scores.importance[i]:+.4g}", _error(error), "yes" if name in inside else "no"])
    return rows


def score_columns(found: FoundCircuit) -> list[str]:
    unit = "" if found.scores.unit in ("none", "unknown") else f" ({found.scores.unit})"
    return [ONE[found.level], f"score{unit}", "±", "in the circuit"]


def verdict(found: FoundCircuit) -> str:
    """Of all scores alike."""
    if found.scores.exact:
        return "verified"
    return "unresolved" if found.scores.estimates_effect else "none"


def interval(estimate: Estimate) -> str:
    if not np.isfinite(estimate.lower):
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.lower:.3f}, {estimate.upper:.3f}]"


def short(estimate: Estimate) -> str:
    """With two decimals, for a column."""
    value, lower, upper = (f"{round(number, 2) + 0.0:.2f}" for number in estimate)
    return value if np.isnan(estimate.lower) else f"{value} [{lower} {upper}]"


def plus_minus(values: np.ndarray) -> str:
    error = standard_error(values)
    return f"{values.mean():+.4g}" + (f" ± {error:.2g}" if np.isfinite(error) else "")


def _error(value: float) -> str:
    return f"{value:.2g}" if np.isfinite(value) else "n/a"
