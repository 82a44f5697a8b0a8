"""Token attribution: which tokens of a prompt drive what the model says next?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from inspect import signature
from typing import Any

import numpy as np
from tqdm import tqdm

from assay.engine.batches import DEFAULT_MEMORY, parse_memory
from assay.engine.cost import CostMeter
from assay.errors import OptionError, refuse_unknown, require_seed
from assay.methods.provenance import describe_environment, describe_model
from assay.model import Model
from assay.model.attention import exclusive
from assay.model.backward import installed, require_no_other_rules, rule_set
from assay.tokens.baselines import DEFAULT as DEFAULT_BASELINE
from assay.tokens.baselines import Baseline, require_baseline
from assay.tokens.faithfulness import (
    DRAWS,
    STEPS,
    Faithfulness,
    TextFaithfulness,
    curves_of,
    keys_of,
    replaceable,
    require_draws,
)
from assay.tokens.methods import (
    DEFAULT_METHOD,
    DEFAULT_STEPS,
    Inputs,
    Setting,
    TokenMethod,
    inputs_of,
    methods_named,
    replaced_values,
    require_suited,
)
from assay.tokens.pieces import continuation, pieces
from assay.tokens.questions import Question, ask, require_one_kind
from assay.tokens.result import Explanation, Explanations
from assay.tokens.runs import require_finite


def explain(
    model: Model,
    text: str,
    target: str | None = None,
    against: str | None = None,
    method: str | Sequence[str] = DEFAULT_METHOD,
    *,
    baseline: str = DEFAULT_BASELINE,
    chat: bool = False,
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    memory: str = DEFAULT_MEMORY,
    **unknown: Any,
) -> Explanation:
    """How much each token of a text speaks for what comes next.

    >>> import assay
    >>> model = assay.load("sequence-sort")
    >>> found = assay.explain(model, "START 7 3 SEP", " 3", method="leave-one-out", baseline="mean")
    >>> found.tokens[int(found.scores["leave-one-out"].argmax())].strip()
    '3'

    Args:
        text: the prompt, tokenised as it is; a begin-of-text token stands in front only if the tokenizer puts one.
        target: what continues it, literally, so mostly with a leading space. Several tokens are teacher-forced, and
            the sum of their log-probabilities is explained; of one token it is the logit. None: the model's own most
            probable next token.
        against: another continuation; what is explained is then the difference of the two.
        method: one or several of `assay.tokens.METHODS`.
        baseline, chat, steps, seed, memory: as in `explain_all`.
        unknown: refused by name.

    Returns:
        Scores, one for each token of the prompt and method: in the unit of what is explained, but for methods that only
        rank tokens (`Explanation.unit`).

    Raises:
        AssayError: as `explain_all`.
    """
    _refuse_unknown(explain, unknown)
    asked = [Question(text, target, against)]
    found = explain_all(model, asked, method, baseline=baseline, chat=chat, steps=steps, seed=seed, memory=memory)
    return found[0]


def explain_all(
    model: Model,
    questions: Sequence[Question],
    methods: str | Sequence[str] = DEFAULT_METHOD,
    *,
    baseline: str = DEFAULT_BASELINE,
    chat: bool = False,
    steps: int = DEFAULT_STEPS,
    faithfulness: bool = False,
    draws: int = DRAWS,
    curves: Sequence[str] = STEPS,
    seed: int = 0,
    memory: str = DEFAULT_MEMORY,
    progress: bool = False,
    **unknown: Any,
) -> Explanations:
    """`explain` of many texts, and how faithful the methods are to the model.

    Args:
        methods: names of `assay.tokens.METHODS`.
        baseline: what a token is compared with: ``space``, ``pad``, ``mean``, or a text of one token or of as many as
            the prompt has. Special tokens stay as they are.
        chat: put texts into the model's chat template.
        steps: of integrated gradients.
        faithfulness: measure comprehensiveness and sufficiency; all texts then need a metric of one unit.
        draws: random orders to compare with there.
        curves: what k runs over there: ``counts``, ``shares`` or both. Counts take up to 100 runs an order, shares 10.
        seed: of random scores and orders.
        memory: working memory, such as ``2G``.
        unknown: refused by name.

    Raises:
        OptionError: an unknown method, baseline or option, or a number that makes no sense.
        DataError: a text or target that cannot be used, by its id.
        ModelError: a method that is not defined for the model.
    """
    _refuse_unknown(explain_all, unknown)
    if not isinstance(model, Model):
        raise OptionError(f"The model must be an assay.Model, as assay.load gives, not {type(model).__name__}.")
    chosen = methods_named(methods)
    require_numbers(steps, draws)
    require_seed(seed)
    require_baseline(baseline)
    keys_of(curves)
    limit = parse_memory(memory)
    model.require_ready()
    model.require_one_device("Token attribution")
    for method in chosen:
        require_suited(method, model)
    with exclusive(model.hf):
        for method in chosen:
            require_no_other_rules(model, rule_set(method.rules), method.name)
        asked = ask(model, questions, chat=chat)
        replacing = Baseline(model, baseline)
        replaced = [replacing.of(one) for one in asked]
        setting = Setting(model, limit, seed, steps, CostMeter())
        prepared = [
            inputs_of(model, number, one, by) for number, (one, by) in enumerate(zip(asked, replaced, strict=True))
        ]
        if faithfulness:
            _require_one_unit(prepared)
        items, measured = [], []
        for inputs, by in zip(
            tqdm(prepared, "texts", disable=not (progress and sys.stderr.isatty())), replaced, strict=True
        ):
            item = _explained(setting, inputs, by.shown, chosen)
            items.append(item)
            if faithfulness:
                ranked = {name: scores for name, scores in item.scores.items() if name != "random"}
                with setting.cost.stage("faithfulness"):
                    measured.append(curves_of(setting, inputs, ranked, draws, curves))
        passes = sum(len(row.clean) for one in asked for row in one.rows) * model.n_layers
    names = tuple(method.name for method in chosen)
    configuration: dict[str, Any] = {
        "methods": list(names), "baseline": baseline, "chat": chat, "steps": steps, "seed": seed, "memory": memory,
        "faithfulness": faithfulness, "draws": draws, "curves": list(curves),
    }  # fmt: skip
    provenance = {
        "model": {**describe_model(model, model.weight_hash), "configuration_sha256": model.configuration_hash},
        **describe_environment(model),
        "sources": {method.name: method.source for method in chosen},
    }
    cost = setting.cost.summary(passes)
    return Explanations(
        tuple(items), names, configuration, provenance, cost, faithfulness=_joined(items, names, measured)
    )


def _refuse_unknown(function: Callable[..., Any], unknown: Collection[str]) -> None:
    note = "; a method brings its own backward rules: gim, transformer-lrp, attn-lrp" if "rules" in unknown else ""
    known = [name for name in signature(function).parameters if name != "unknown"]
    refuse_unknown(function.__name__, unknown, known, note)


def require_numbers(steps: int, draws: int) -> None:
    """Refuse numbers of steps and draws that make no sense."""
    if type(steps) is not int or steps < 1:
        raise OptionError(f"Integrated gradients need at least 1 step, not {steps}.")
    require_draws(draws)


def _require_one_unit(prepared: Sequence[Inputs]) -> None:
    for inputs in prepared:
        replaceable(inputs)
    require_one_kind([(inputs.asked.question.id, f"by {inputs.asked.metric.name}") for inputs in prepared])


def _joined(
    items: Sequence[Explanation], names: tuple[str, ...], measured: list[TextFaithfulness]
) -> Faithfulness | None:
    if not measured:
        return None
    return Faithfulness.of(tuple(name for name in names if name != "random"), items[0].unit, measured)


def _explained(setting: Setting, inputs: Inputs, baseline: str, methods: Sequence[TokenMethod]) -> Explanation:
    asked, model = inputs.asked, setting.model
    with setting.cost.stage("values"):
        none, every = np.zeros(inputs.length, bool), np.ones(inputs.length, bool)
        values = replaced_values(setting, inputs, np.stack([none, every]))
    for number, what in enumerate(("on the text", "with every token replaced")):
        require_finite(model, asked.question.id, f"the {asked.metric.name} or probability {what}", values[:, number])
    scores, gaps = {}, {}
    for method in methods:
        with setting.cost.stage(method.name), installed(model, rule_set(method.rules)):
            scores[method.name] = method.compute(setting, inputs)
        require_finite(model, asked.question.id, f"a score of {method.name}", scores[method.name])
        if method.is_complete:
            gaps[method.name] = float(values[0, 0] - values[0, 1] - scores[method.name].sum())
    return Explanation(
        id=asked.question.id,
        text=asked.question.text,
        tokens=pieces(model, asked.prompt),
        token_ids=asked.prompt,
        fixed=asked.fixed,
        target=continuation(model, asked.prompt, asked.target),
        target_ids=asked.target,
        target_is_models_own=asked.question.target is None,
        against=asked.question.against,
        against_ids=asked.against,
        metric=asked.metric.name,
        unit=asked.metric.unit,
        value=float(values[0, 0]),
        baseline_value=float(values[0, 1]),
        probability=float(values[1, 0]),
        baseline=baseline,
        scores=scores,
        gaps=gaps,
    )
