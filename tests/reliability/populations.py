"""Made-up components whose exact effects are known, each hard in its own way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from assay.reliability import Estimates

EXAMPLES = 4
Population = tuple[Estimates, np.ndarray]
"""Estimates, and exact effects (C, n)."""


def _population(
    first: np.ndarray, quadratic: np.ndarray, rest: np.ndarray, seed: int, noise: float = 0.2
) -> Population:
    """Exact = first + quadratic + rest on average; curvature is sampled with relative ``noise``; examples differ."""
    chance = np.random.default_rng([seed, 99])
    shape = (len(first), EXAMPLES)
    first_order = first[:, None] * (1 + 0.3 * chance.standard_normal(shape))
    second = quadratic[:, None] * (1 + 0.3 * chance.standard_normal(shape))
    stderr = noise * np.abs(second)
    exact = first_order + second + rest[:, None]
    sampled = second + stderr * chance.standard_normal(shape)
    return Estimates(["heads"] * len(first), first_order, sampled, stderr), exact


def _effects(chance: np.random.Generator, count: int) -> np.ndarray:
    """Few large, many small, as in language models."""
    return chance.standard_normal(count) * chance.lognormal(-2, 1.5, count)


def well_behaved(count: int, seed: int) -> Population:
    chance = np.random.default_rng(seed)
    first = _effects(chance, count)
    quadratic = 0.3 * first * chance.standard_normal(count)
    return _population(first, quadratic, 0.2 * quadratic * chance.standard_normal(count), seed)


def heavy_tails(count: int, seed: int) -> Population:
    chance = np.random.default_rng(seed)
    first = _effects(chance, count)
    return _population(first, 0.2 * first, 0.1 * first * chance.standard_cauchy(count), seed)


def ties(count: int, seed: int) -> Population:
    """Few distinct effects and errors, curvature known exactly to be none."""
    chance = np.random.default_rng(seed)
    exact = np.repeat(chance.integers(-2, 3, count)[:, None], EXAMPLES, 1).astype(float)
    first = exact + chance.integers(-1, 2, (count, 1))
    zeros = np.zeros_like(exact)
    return Estimates(["heads"] * count, first, zeros, zeros), exact


def zeros(count: int, seed: int) -> Population:
    """Nine of ten components do nothing, and their estimates say so."""
    estimates, exact = well_behaved(count, seed)
    idle = np.arange(count) % 10 != 0
    arrays = [np.where(idle[:, None], 0.0, x) for x in (estimates.first_order, estimates.quadratic)]
    stderr = np.where(idle[:, None], 0.0, estimates.quadratic_stderr)
    return Estimates(estimates.kinds, *arrays, stderr), np.where(idle[:, None], 0.0, exact)


def errors_grow_with_effects(count: int, seed: int) -> Population:
    chance = np.random.default_rng(seed)
    first = _effects(chance, count)
    return _population(first, 0 * first, 2 * first * np.abs(first), seed)


def useless(count: int, seed: int) -> Population:
    """Estimates that have nothing to do with the effects."""
    chance = np.random.default_rng(seed)
    _, exact = well_behaved(count, seed)
    estimates, _ = well_behaved(count, seed + 1000)
    return estimates, exact[chance.permutation(count)]


def discontinuous(count: int, seed: int) -> Population:
    """Expert routing: a tenth of the patches switch experts, which no derivative sees."""
    chance = np.random.default_rng(seed)
    estimates, exact = well_behaved(count, seed)
    return estimates, exact + (chance.random((count, 1)) < 0.1) * chance.normal(0, 1, (count, 1))


def curvature_misleads(count: int, seed: int) -> Population:
    """Saturation: the quadratic term is large, sure, and overshoots fivefold."""
    chance = np.random.default_rng(seed)
    first = _effects(chance, count)
    quadratic = first * chance.uniform(1, 3, count)
    return _population(first, quadratic, -0.8 * quadratic, seed, noise=0.05)


def curvature_is_noise(count: int, seed: int) -> Population:
    """Single neurons: sampled curvature whose standard error exceeds the term."""
    chance = np.random.default_rng(seed)
    first = _effects(chance, count)
    return _population(first, 0.05 * first, 0.01 * first * chance.standard_normal(count), seed, noise=3.0)


def curvature_is_a_toss_up(count: int, seed: int) -> Population:
    """With curvature or without, errors are about the same: the choice between them is all chance."""
    chance = np.random.default_rng(seed)
    first = _effects(chance, count)
    quadratic = first * chance.standard_normal(count)
    return _population(first, quadratic, -0.5 * quadratic + 0.5 * quadratic * chance.standard_normal(count), seed)


POPULATIONS: dict[str, Callable[[int, int], Population]] = {
    maker.__name__: maker
    for maker in (
        well_behaved,
        heavy_tails,
        ties,
        zeros,
        errors_grow_with_effects,
        useless,
        discontinuous,
        curvature_misleads,
        curvature_is_noise,
        curvature_is_a_toss_up,
    )
}
