"""Edge scores: how much the metric falls, exactly or by an estimate, when one edge carries the counterfactual."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import pandas as pd

from assay.circuits.ahead import Piece, compute_ahead
from assay.circuits.contrast import Ablation, Contrast, Study, studied
from assay.circuits.folder import edge_frames, edges_of_files, files_of_edges
from assay.circuits.graph import Graph
from assay.circuits.method import EdgeMethod
from assay.circuits.registry import EDGE_METHODS, edge_method
from assay.circuits.selection import ranked
from assay.circuits.work import Work
from assay.data.encoding import Align
from assay.data.metrics import Metric
from assay.data.pairs import PromptPairs
from assay.data.readers import AnyPairs
from assay.engine.sources import MeanOver
from assay.errors import InterventionError, OptionError
from assay.methods.own_code import own_code
from assay.model import Model
from assay.store import read_run, write_run


@dataclass(frozen=True, eq=False)
class EdgeScores:
    """A score for every edge on every example; higher = more important."""

    graph: Graph
    values: np.ndarray
    """(n, E) float64, in the metric's unit unless the method has none; (1, E) of an import (the mean), of learned masks
    and of ensembles."""
    pairs: PromptPairs | None
    """What they were made on; None of an import that does not say."""
    method: str
    metric: str
    unit: str
    exact: bool
    """Every value was measured by intervention."""
    estimates_effect: bool
    """The values stand for the effect of patching the edge alone."""
    configuration: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> np.ndarray:
        """(E,) over examples."""
        mean: np.ndarray = self.values.mean(0)
        return mean

    @property
    def label(self) -> str:
        """What may be said of the numbers."""
        return label_of(exact=self.exact)

    def save(
        self, folder: str | Path, *, overwrite: bool = False, finish: Callable[[Path], object] = lambda _: None
    ) -> Path:
        """Write a run folder.

        Args:
            overwrite: replace a run folder that is there already.
            finish: may add files before the folder gets its name.

        Raises:
            StoreError: the folder exists or cannot be written.
        """
        return write_run(folder, files_of_edges(self), overwrite, finish)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a run folder that `save` wrote, or ``assay circuit --level edge``.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        return cls(**edges_of_files(read_run(folder), str(folder)))

    def to_pandas(self) -> pd.DataFrame:
        """One row per edge: keys, mean, importance, standard error over prompts, verdict, label."""
        return edge_frames(self)[1]

    def top(self, k: int = 20, *, absolute: bool = True) -> pd.DataFrame:
        """The k edges of largest absolute (or signed) mean score."""
        if k < 1:
            raise OptionError(f"The number of edges to show must be at least 1, not {k}.")
        frame = self.to_pandas().iloc[ranked(self.mean, absolute=absolute)[:k]].reset_index(drop=True)
        frame.insert(0, "edge", frame["source"] + "->" + frame["destination"])
        return frame[["edge", "importance", "stderr_prompts", "verdict"]]


def label_of(*, exact: bool) -> str:
    """What may be said of scores."""
    return "measured by intervention" if exact else "not causally validated"


class EdgeOptions(TypedDict, total=False):
    """Options of every edge method; see `edge_scores`."""

    ungrouped: bool
    mean: MeanOver | None
    reference: AnyPairs | None
    metric: str | Metric | None
    memory: str
    align: Align
    chat: bool
    force: bool
    work: Work | None
    """Keeps and tells what is done."""


def edge_scores(
    model: Model,
    pairs: AnyPairs,
    method: EdgeMethod | str = "eap-ig-inputs",
    *,
    ablation: Ablation = "patch",
    **options: Unpack[EdgeOptions],
) -> EdgeScores:
    """Score every edge of a model's graph on every pair.

    Args:
        method: a name of `assay.circuits.registry.EDGE_METHODS`, or what one of its functions gives for parameters of
            your own.
        ablation: what an edge is patched with: the corrupted run (``patch``), ``zero`` or a ``mean``.
        options: ``ungrouped`` (keys and values for every query head); ``mean``, ``reference``, ``metric``, ``memory``,
            ``align``, ``chat`` and ``force`` as in `assay.measure`.

    Returns:
        Scores per example; an example's do not depend on which others are there.

    Raises:
        OptionError: no such method, or one that this ablation is not defined for; otherwise as `assay.measure`.
    """
    chosen = edge_method(method) if isinstance(method, str) else method
    if chosen.clean_only:
        ablation = "zero"
    elif ablation not in chosen.ablations:
        raise OptionError(f"{chosen.name} is defined for {', '.join(chosen.ablations)}, not for {ablation!r}.")
    require_floats(chosen, model.dtype.itemsize)
    order = 2 if chosen.second_order or chosen.learn else int(chosen.gradients)
    with studied(model, pairs, chosen.name, order=order, ablation=ablation, **options) as study:
        values = np.zeros((study.n, study.graph.n_edges))
        if chosen.learn is not None:
            learn = partial(chosen.learn, study)
            learned = study.work.piece(f"learned {chosen.parameters}", chosen.name, study.cost, learn)
            return _scores_of(study, chosen, learned)
        sweeps = chosen.sweeps(study.graph)
        _ahead(study, chosen)
        with study.work.progress(study.rows * sweeps, "(prompt, pass) pairs"):
            done = 0
            for contrast in study.contrasts():
                np.add.at(values, contrast.examples, _of_rows(chosen, contrast))
                done += contrast.batch.rows
                study.work.reach(done * sweeps)
    return _scores_of(study, chosen, values)


def _of_rows(method: EdgeMethod, contrast: Contrast) -> np.ndarray:
    """(R, E)"""
    if method.pieces is not None:
        return _numbers(method, contrast)
    return contrast.piece(_content(method), method.name, partial(_numbers, method, contrast))


def _content(method: EdgeMethod) -> str:
    return f"scores {method.parameters}"


def _numbers(method: EdgeMethod, contrast: Contrast) -> np.ndarray:
    values: np.ndarray = method.compute(contrast).double().cpu().numpy()
    return values


def _ahead(study: Study, method: EdgeMethod) -> None:
    """Have others compute what they can be told of: a method of assay's own, by its name."""
    made = None
    if method.name in EDGE_METHODS and own_code(method.compute) is None:
        with suppress(OptionError):  # rules of one's own have no name
            made = edge_method(method.name, **method.parameters)
    if made is None or made.parameters != method.parameters:
        return
    names = [_content(method)] if method.pieces is None else method.pieces[0](study.graph)
    pieces = [
        Piece(block, part, f"{study.name_of(block)}, {name}")
        for block in range(len(study.blocks))
        for part, name in enumerate(names)
    ]
    compute_ahead(study, pieces, partial(_of_part, method.name, method.parameters), method.name)


def _of_part(name: str, parameters: dict[str, Any], contrast: Contrast, part: int) -> np.ndarray:
    method = edge_method(name, **parameters)
    return _numbers(method, contrast) if method.pieces is None else method.pieces[1](contrast, part)


def require_floats(method: EdgeMethod, itemsize: int) -> None:
    """Refuse (`OptionError`) half precision for second derivatives and for learning, which its rounding drowns."""
    if method.learn is not None and itemsize < 4:
        raise OptionError(f"{method.name} learns by small steps, which need --dtype float32 or float64.")
    if method.second_order and itemsize < 4:
        raise OptionError(f"{method.name} takes second derivatives, which need --dtype float32 or float64.")


def _scores_of(study: Study, method: EdgeMethod, values: np.ndarray) -> EdgeScores:
    if not np.isfinite(values).all():
        edge = int(np.flatnonzero(~np.isfinite(values).all(0))[0])
        raise InterventionError(
            f"The {method.name} score of {study.graph.edge_name(edge)} is not finite; check the weights."
        )
    settled = study.prepared
    configuration = {**settled.configuration, **method.parameters, "graph": asdict(study.graph)}
    configuration["ablation"] = study.ablation
    configuration["sites"] = "edges"
    del configuration["direction"]  # what an edge carries instead is the ablation's to say
    return EdgeScores(
        study.graph, values, settled.pairs, method.name, study.metric.name,
        study.metric.unit if method.has_unit else "none", method.exact, method.estimates_effect, configuration,
        study.cost.summary(settled.layer_tokens), settled.provenance(method.source),
    )  # fmt: skip
