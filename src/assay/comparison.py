"""Estimates against the truth: how far each method is from exhaustive activation patching, and at what cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

import numpy as np
import pandas as pd

from assay.errors import OptionError, refuse_unknown
from assay.methods.method import AnyPairs, MeasureOptions, Method, measure
from assay.methods.registry import METHODS, method_named
from assay.model import Model
from assay.scores import Scores

EXACT = "activation-patching"
OVERLAPS = (5, 10, 20)
TOP = 5
SMALL = 0.01
"""Effects below this share of the largest count for no sign error."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """One method against exact effects. What a method does not give is None."""

    method: str
    """With its parameters, as `parse_method` reads it."""
    scale: float
    """What the values were multiplied by first: 1, or a fitted factor for methods that do not estimate the effect."""
    top_error: float | None
    """|estimate - exact| / |exact|, averaged over a prompt's five largest exact effects; the median prompt."""
    l1_error: float
    """Sum of |estimate - exact| over sum of |exact|, over components and prompts."""
    pearson: float | None
    """Of the means over prompts."""
    spearman: float | None
    overlap: dict[int, float | None]
    """Share of the k largest absolute means that are among the exact ones' k."""
    sign_errors: float | None
    """Share of the components with an exact mean above 1 % of the largest whose estimate has the other sign."""
    forward_equivalents: float
    backward_passes: float | None
    """Per component, as arXiv 2606.09899 counts; None where a precision decides how many."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def compare(
    model: Model,
    pairs: AnyPairs,
    methods: str | Sequence[str | Method],
    *,
    k: int = 10,
    on_scores: Callable[[Scores], object] = lambda _: None,
    **options: Unpack[MeasureOptions],
) -> tuple[Scores, list[Comparison]]:
    """Exact effects by activation patching, and how each method compares; the exact one first.

    Args:
        methods: names, with parameters as in ``ms-hvp:segments=2`` (in one string with commas, or several), or methods.
        k: one more number of top components to overlap, besides 5, 10 and 20.
        on_scores: called with the scores of every method as they are finished.
        options: as in `assay.measure`.

    Raises:
        OptionError: a method that cannot be compared with patching; otherwise as `assay.measure`.
    """
    refuse_unknown("compare", options, ("k", "on_scores", *MeasureOptions.__annotations__))
    if isinstance(methods, str):
        methods = parse_methods(methods)
    chosen = [parse_method(method) if isinstance(method, str) else method for method in methods]
    require_comparable(chosen, k)
    exact = measure(EXACT, model, pairs, **options)
    on_scores(exact)
    found = [compared(METHODS[EXACT], exact, exact, k, model.n_layers)]
    for method in chosen:
        if method.name != EXACT:
            scores = measure(method, model, pairs, **options)
            on_scores(scores)
            found.append(compared(method, scores, exact, k, model.n_layers))
    return exact, found


def compared(method: Method, scores: Scores, exact: Scores, k: int, layers: int) -> Comparison:
    """The figures of one method's scores. Unsigned ones are held against absolute exact effects."""
    truth = exact.values if method.signed else np.abs(exact.values)
    values = scores.values if method.has_unit else scores.values * exact.sign
    scale = 1.0
    if not method.estimates_effect:
        square = float((values**2).sum())
        scale = float((values * truth).sum()) / square if square else 0.0
    mean, true_mean = values.mean(1), truth.mean(1)
    values = values * scale  # ranks, correlations and signs are the method's own: a negative scale would turn them
    large = np.abs(true_mean) > SMALL * np.abs(true_mean).max(initial=0.0)
    total = np.abs(truth).sum()
    passes = method.backward_passes(scores.components, layers)
    return Comparison(
        method=describe_method(method),
        scale=scale,
        top_error=_top_error(values, truth),
        l1_error=float(np.abs(values - truth).sum() / total) if total else 0.0,
        pearson=_correlation(mean, true_mean),
        spearman=_correlation(_ranks(mean), _ranks(true_mean)),
        overlap={size: _overlap(mean, true_mean, size) for size in sorted({*OVERLAPS, k})},
        sign_errors=float((np.sign(mean) != np.sign(true_mean))[large].mean())
        if method.signed and any(large)
        else None,
        forward_equivalents=scores.cost["forward_equivalents"],
        backward_passes=None if passes is None else passes / len(scores.components),
        seconds=sum(scores.cost["seconds"].values()),
    )


def _top_error(values: np.ndarray, truth: np.ndarray) -> float | None:
    """None if a prompt's five largest exact effects include zero."""
    order = np.argsort(-np.abs(truth), axis=0, kind="stable")[:TOP]
    true_top = np.take_along_axis(truth, order, 0)
    if not (true_top != 0).all():
        return None
    errors = np.abs(np.take_along_axis(values, order, 0) - true_top) / np.abs(true_top)
    return float(np.median(errors.mean(0)))


def _ranks(values: np.ndarray) -> np.ndarray:
    ranks: np.ndarray = pd.Series(values).rank().to_numpy(np.float64)
    return ranks


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """None where one of the two is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _overlap(a: np.ndarray, b: np.ndarray, k: int) -> float | None:
    """None where every component is among the k largest."""
    if k >= len(a):
        return None
    top = [set(np.argsort(-np.abs(values), kind="stable")[:k].tolist()) for values in (a, b)]
    return len(top[0] & top[1]) / k


def parse_methods(text: str) -> list[Method]:
    """Methods of a phrase such as ``hvp,ms-hvp:segments=2,integrated-gradients:rule=left:steps=5``.

    Raises:
        OptionError: an unknown method or parameter, or a method twice.
    """
    methods = [parse_method(term.strip()) for term in text.split(",") if term.strip()]
    names = [describe_method(method) for method in methods]
    if not methods or len(set(names)) < len(names):
        raise OptionError("--methods names each method once, for example attribution-patching,hvp,ms-hvp:segments=2.")
    require_comparable(methods)
    return methods


def parse_method(text: str) -> Method:
    """A method of a name such as ``ms-hvp`` or ``ms-hvp:segments=2``.

    Raises:
        OptionError: an unknown method or parameter.
    """
    name, *settings = text.split(":")
    parameters: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise OptionError(f"A method's parameters are written ms-hvp:segments=2, not {text!r}.")
        parameters[key.replace("-", "_")] = _value(value)
    return method_named(name, **parameters)


def _value(text: str) -> int | float | bool | str:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d+(e-?\d+)?", text):
        return float(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def describe_method(method: Method) -> str:
    """Its name and parameters, as `parse_method` reads them."""
    return ":".join([method.name, *(f"{key}={value}" for key, value in method.parameters.items())])


def require_comparable(methods: Sequence[Method], k: int = 10) -> None:
    """Refuse what asks another question than activation patching does.

    Raises:
        OptionError: an ablation, path patching, or k below 1.
    """
    if k < 1:
        raise OptionError(f"--k must be at least 1, not {k}.")
    for method in methods:
        if method.directions == ("ablation",) or (method.exact and method.name != EXACT):
            raise OptionError(
                f"{method.name} measures another effect than {EXACT} does; it cannot be compared with it."
            )
