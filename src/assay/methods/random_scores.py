"""Random scores: the yardstick that any method must beat. Standard normal, no effect is estimated."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from assay.engine.response import Response
from assay.methods.method import AnyPairs, MeasureOptions, Method, Setting, measure
from assay.model import Model
from assay.scores import Scores


def _draw(response: Response, setting: Setting) -> Tensor:
    # An example's stream depends on nothing but the seed and its number, so batching cannot change it.
    examples, signs = response.batch.examples.tolist(), response.batch.targets.sign.tolist()
    columns = [
        np.random.default_rng([setting.seed, example]).standard_normal(len(response.components)) * (sign > 0)
        for example, sign in zip(examples, signs, strict=True)
    ]
    response.advance(len(examples) * len(response.components))
    return torch.from_numpy(np.stack(columns, axis=1))


METHOD = Method(
    name="random",
    description="random scores, the yardstick that any method must beat",
    source_note="control",
    compute=_draw,
    estimates_effect=False,
    has_unit=False,
)


def random_scores(model: Model, pairs: AnyPairs, **options: Unpack[MeasureOptions]) -> Scores:
    """Standard normal scores; options as in `assay.measure`."""
    return measure(METHOD, model, pairs, **options)
