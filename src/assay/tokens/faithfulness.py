"""Do the tokens that a method ranks first really drive the target? (ERASER, arXiv 1911.03429; AOPC as in 2505.17630.)

Of the n tokens that may be replaced (neither first nor last nor special), in a method's order:

    comprehensiveness  mean over k of  M(text) - M(text without the k first);            higher is better
    sufficiency        mean over k of  M(text) - M(text without all but the k first);    lower is better

*Without* means that tokens are replaced by their baselines, together and exactly. k runs over counts, 1 to 50 (or n),
or over shares of n: the first 1, 5, 10, 20 and 50 % are replaced for comprehensiveness, the last 50, 80, 90, 95 and
99 % for sufficiency. M is what is explained, or the target's probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.errors import DataError, OptionError
from assay.reliability.sign_flips import sign_flip_interval
from assay.tokens.methods import Inputs, Setting, replaced_values
from assay.tokens.runs import require_finite

Numbers = NDArray[np.float64]
MOST = 50
PERCENT_FIRST = (1, 5, 10, 20, 50)
PERCENT_LAST = (50, 80, 90, 95, 99)
DRAWS = 5
RANDOM = "random"
MEASURES, STEPS, UNITS = ("comprehensiveness", "sufficiency"), ("counts", "shares"), ("metric", "probability")
Key = tuple[str, str, str]
KEYS: tuple[Key, ...] = tuple(product(MEASURES, STEPS, UNITS))
NOISES = 2.0
"""A text's own value is no denominator unless it exceeds so many standard deviations over random orders."""


def keys_of(curves: Sequence[str]) -> tuple[Key, ...]:
    """What is measured for these curves, in the order of KEYS.

    Raises:
        OptionError: not one or two of `STEPS`.
    """
    if not curves or len(set(curves)) < len(curves) or not set(curves) <= set(STEPS):
        raise OptionError(f"curves are one or both of {' and '.join(STEPS)}, not {list(curves)}.")
    return tuple(key for key in KEYS if key[1] in curves)


@dataclass(frozen=True, eq=False)
class TextFaithfulness:
    """Of one text: K measures in a row for each method, and for each random order."""

    keys: tuple[Key, ...]
    """K of KEYS."""

    full: Numbers
    """(2,): M and the probability of the text."""
    methods: Numbers
    """(methods, K)"""
    random: Numbers
    """(draws, K)"""


def replaced_positions(fixed: Sequence[bool]) -> list[int]:
    """Positions that take part: all but the first, the last and special ones."""
    return [position for position in range(1, len(fixed) - 1) if not fixed[position]]


def replaceable(inputs: Inputs) -> list[int]:
    """Positions of the tokens that are replaced: all but the first, the last and special ones.

    Raises:
        DataError: fewer than two are left.
    """
    inner = replaced_positions(inputs.asked.fixed)
    if len(inner) < 2:
        raise DataError(
            f"{inputs.asked.question.id}: {len(inner)} of {inputs.length} tokens may be replaced, since first, last "
            "and special ones stay; an order of tokens needs two."
        )
    return inner


def counts_of(n: int) -> dict[tuple[str, str], list[int]]:
    """How many tokens are replaced, from the front for comprehensiveness, from the back for sufficiency."""
    kept = range(1, min(MOST, n) + 1)
    return {
        ("comprehensiveness", "counts"): list(kept),
        ("comprehensiveness", "shares"): [-(-percent * n // 100) for percent in PERCENT_FIRST],  # at least one
        ("sufficiency", "counts"): [n - k for k in kept],
        ("sufficiency", "shares"): [percent * n // 100 for percent in PERCENT_LAST],  # not all
    }


def curves_of(
    setting: Setting,
    inputs: Inputs,
    scores: Mapping[str, Numbers],
    draws: int = DRAWS,
    curves: Sequence[str] = STEPS,
) -> TextFaithfulness:
    """All measures of all methods on one text; each distinct set of replaced tokens is run once.

    Args:
        scores: T for each method; higher is first, ties in the order of the text.
        draws: random orders.
        curves: what k runs over.

    Raises:
        DataError: a value that is not finite.
    """
    keys = keys_of(curves)
    positions = np.array(replaceable(inputs))
    orders = [positions[np.argsort(-values[positions], kind="stable")] for values in scores.values()]
    orders += [
        np.random.default_rng([setting.seed, inputs.number, draw]).permutation(positions) for draw in range(draws)
    ]
    masks: dict[bytes, int] = {}
    distinct: list[NDArray[np.bool_]] = []

    def run_of(replaced: NDArray[np.int64]) -> int:
        mask = np.zeros(inputs.length, bool)
        mask[replaced] = True
        if mask.tobytes() not in masks:
            masks[mask.tobytes()] = len(distinct)
            distinct.append(mask)
        return masks[mask.tobytes()]

    whole = run_of(positions[:0])
    counts = {key: ks for key, ks in counts_of(len(positions)).items() if key[1] in curves}
    wanted = [
        {
            (measure, steps): [run_of(order[:k] if measure == MEASURES[0] else order[len(order) - k :]) for k in ks]
            for (measure, steps), ks in counts.items()
        }
        for order in orders
    ]
    values = replaced_values(setting, inputs, np.stack(distinct))
    require_finite(setting.model, inputs.asked.question.id, "a value with tokens replaced", values)
    drops = values[:, [whole]] - values
    rows = np.array(
        [[drops[UNITS.index(unit), order[key, steps]].mean() for key, steps, unit in keys] for order in wanted]
    )
    return TextFaithfulness(keys, values[:, whole], rows[: len(scores)], rows[len(scores) :])


def require_draws(draws: int) -> None:
    """Refuse a number of random orders without a spread."""
    if type(draws) is not int or draws < 2:
        raise OptionError(f"The spread of random orders needs at least 2 of them, not {draws}.")


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """How faithful methods are, text by text; the last method is random, its values the means over orders."""

    methods: tuple[str, ...]
    metric_unit: str
    keys: tuple[Key, ...]
    """K of KEYS: measure, what k runs over, unit."""
    values: Numbers
    """(methods, K, n) mean drops."""
    spread: Numbers
    """(K, n) standard deviation over random orders."""
    full: Numbers
    """(2, n) M and probability of the texts."""

    @classmethod
    def of(cls, methods: tuple[str, ...], metric_unit: str, texts: list[TextFaithfulness]) -> Self:
        values = [np.vstack([text.methods, text.random.mean(0)]) for text in texts]
        return cls(
            (*methods, RANDOM),
            metric_unit,
            texts[0].keys,
            np.stack(values, axis=-1),
            np.stack([text.random.std(0, ddof=1) for text in texts], axis=-1),
            np.stack([text.full for text in texts], axis=-1),
        )

    @property
    def shares(self) -> Numbers:
        """(methods, K, n) drops as shares of the text's own value, as in arXiv 2505.17630.

        NaN where that value is not positive, or within `NOISES` standard deviations of 0 of what random orders of
        tokens move it by: such a quotient says nothing.
        """
        own = self.full[[UNITS.index(unit) for _, _, unit in self.keys]]
        usable = own > NOISES * self.spread
        return np.where(usable, self.values / np.where(usable, own, 1.0), np.nan)

    def summary(self, seed: int = 0) -> pd.DataFrame:
        """One row for each method and measure: mean over texts with its 95 % interval, mean share, and for random the
        standard deviation over orders within a text.

        Intervals are those of `sign_flip_interval`, NaN for fewer than 6 texts. A method's own values are not
        symmetric, so these hold approximately; for whether methods differ, see `differences`.

        Args:
            seed: of the subsets of texts that are drawn where there are more than 13.
        """
        shares = self.shares
        rows = []
        for number, method in enumerate(self.methods):
            spread = sign_flip_interval(self.values[number], seed=seed)
            for key, (measure, steps, unit) in enumerate(self.keys):
                usable = ~np.isnan(shares[number, key])
                rows.append(
                    {
                        "method": method,
                        "measure": measure,
                        "steps": steps,
                        "unit": self.metric_unit if unit == "metric" else unit,
                        "mean": self.values[number, key].mean(),
                        "lower": spread.lower[key],
                        "upper": spread.upper[key],
                        "share": shares[number, key][usable].mean() if usable.any() else np.nan,
                        "texts": self.values.shape[-1],
                        "texts_of_share": int(usable.sum()),
                        "spread": self.spread[key].mean() if method == RANDOM else np.nan,
                    }
                )
        return pd.DataFrame(rows)

    def differences(self, seed: int = 0) -> pd.DataFrame:
        """One row for each two methods and measure: mean of first - second, text by text, and its 95 % interval.

        Paired, by `sign_flip_interval`: of methods that are equally good, it excludes 0 in one of twenty comparisons at
        most, however few the texts; NaN for fewer than 6, which cannot decide anything at this level. Rows of one pair
        of methods are of the same texts, so they are not independent of one another: a logit and a probability that
        both exclude 0 are not twice the evidence.

        Args:
            seed: of the subsets of texts that are drawn where there are more than 13.
        """
        rows = []
        for first, second in combinations(range(len(self.methods)), 2):
            difference = self.values[first] - self.values[second]
            spread = sign_flip_interval(difference, seed=seed)
            for key, (measure, steps, unit) in enumerate(self.keys):
                rows.append(
                    {
                        "first": self.methods[first],
                        "second": self.methods[second],
                        "measure": measure,
                        "steps": steps,
                        "unit": self.metric_unit if unit == "metric" else unit,
                        "mean": difference[key].mean(),
                        "lower": spread.lower[key],
                        "upper": spread.upper[key],
                    }
                )
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        arrays = {name: getattr(self, name).tolist() for name in ("values", "spread", "full")}
        return {
            "methods": list(self.methods),
            "metric_unit": self.metric_unit,
            "keys": [list(key) for key in self.keys],
            **arrays,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """What `to_dict` gave.

        Raises:
            ValueError: of other measures, or arrays that do not fit.
        """
        values, spread, full = (np.asarray(found[name], np.float64) for name in ("values", "spread", "full"))
        methods = tuple(found["methods"])
        keys = tuple(key for key in KEYS if list(key) in found["keys"])
        n = full.shape[-1]
        shapes = (values.shape, spread.shape, full.shape)
        if len(keys) != len(found["keys"]) or shapes != ((len(methods), len(keys), n), (len(keys), n), (2, n)):
            raise ValueError("faithfulness is of other measures, or its arrays do not fit together")
        return cls(methods, found["metric_unit"], keys, values, spread, full)
