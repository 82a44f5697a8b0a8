"""Self-repair of attention: two keys that stand in for each other (Edin et al., arXiv 2505.17630).

Where two keys of a row have large weights and like values, the softmax gives the weight of an ablated one to the
other: alone neither seems to matter, and the gradient of both scores vanishes. For every layer, head and query in which
two or more keys contribute more than a threshold to the metric, the scores of the two largest are ablated, one by one
and together: by the paper's frozen readout, which holds everything after the head at its gradient, and, for a sample of
rows, by running the rest of the model again.

Axes: R sequences, L layers, H heads, T queries, S keys, D head width, n rows of attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from assay.data.encoding import tokenizer_of
from assay.engine.baseline import PlainRuns
from assay.engine.batches import Batch
from assay.engine.cost import CostMeter
from assay.engine.gradients import stream_gradients
from assay.engine.memory import Portions
from assay.engine.response import Response
from assay.engine.sources import zeros
from assay.errors import InterventionError, OptionError
from assay.interactions.attention_rows import LayerScores, Rows, layer_scores, per_head
from assay.interactions.result import COLUMNS, EFFECTS, INTEGERS, SelfRepair, Sequences, hidden
from assay.interactions.score_ablation import ScoreLane, losses
from assay.methods.attribution_patching import METHOD as ATTRIBUTION_PATCHING
from assay.methods.method import AnyPairs, CommonOptions, Setting
from assay.methods.preparation import Prepared, prepared
from assay.methods.progress import progress_of
from assay.model import Model

THRESHOLD, RELATIVE, TEMPERATURE, RERUN = 1.0, 0.1, 2.0, 256
WORST = 10
SOURCE = "Edin et al., arXiv 2505.17630 (self-repair)"

# What `prepared` needs to know: heads, on the clean prompts, with a gradient. Nothing is patched by it.
METHOD = replace(ATTRIBUTION_PATCHING, name="self-repair", source=lambda _: zeros, by_component=False, kinds=("heads",))


@dataclass(frozen=True)
class Limits:
    """What matters, and how many rows are rerun; see `self_repair`.

    Raises:
        OptionError: a number that makes no sense.
    """

    threshold: float = THRESHOLD
    relative: float = RELATIVE
    temperature: float = TEMPERATURE
    rerun: int = RERUN

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise OptionError(f"--threshold must be above 0, not {self.threshold}.")
        if not 0 < self.relative <= 1:
            raise OptionError(f"--relative is a share above 0 and at most 1, not {self.relative}.")
        if not 1 <= self.temperature < np.inf:
            raise OptionError(f"--temperature must be at least 1 (the true gradient), not {self.temperature}.")
        if self.rerun < 0:
            raise OptionError(f"--rerun must be at least 0, not {self.rerun}.")


def self_repair(
    model: Model,
    pairs: AnyPairs,
    *,
    threshold: float = THRESHOLD,
    relative: float = RELATIVE,
    temperature: float = TEMPERATURE,
    rerun: int = RERUN,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
    **options: Unpack[CommonOptions],
) -> SelfRepair:
    """How often two keys of an attention row matter together on the clean prompts, and what ablating them does.

    Args:
        threshold: a key matters if it contributes more than this to the metric, in its unit (the paper: 1 logit).
        relative: or more than this share of the largest contribution of any key, in any row of the prompt.
        temperature: of the softmax in the gradient of the scores that is held against the true one.
        rerun: at most so many rows, drawn at random, are also ablated truly, three runs each; 0: none. Besides these
            the rows that hide most are always rerun (unless 0); they are no part of the sample.
        seed: of that draw, and of tasks.
        force, progress: as in `assay.measure`.
        options: ``metric, memory, align, chat``, as in `assay.measure`.

    Raises:
        OptionError: a number that makes no sense, or a metric without a gradient at the clean run.
        AssayError: as `assay.measure`.
    """
    limits = Limits(threshold, relative, temperature, rerun)
    model.require_one_device("Self-repair")
    with prepared(METHOD, model, pairs, sites="heads", seed=seed, **options) as run:
        cost = CostMeter()
        baseline, measured = run.measure_baseline(cost, by_start=False, force=force)
        search = _Search(run, measured, cost, limits)
        with cost.stage("rows"):
            rows, sequences = search.rows()
        with cost.stage("reruns"):
            rows = search.rerun(rows, np.random.default_rng(seed), progress)
        return SelfRepair(
            rows=rows,
            sequences=sequences,
            layers=model.n_layers,
            heads=model.n_heads,
            threshold=threshold,
            relative=relative,
            temperature=temperature,
            pairs=run.pairs,
            metric=run.setting.metric.name,
            unit=run.setting.metric.unit,
            baseline=baseline,
            cost=cost.summary(run.layer_tokens),
            configuration={
                **run.configuration,
                "threshold": threshold,
                "relative": relative,
                "temperature": temperature,
                "rerun": rerun,
            },
            provenance=run.provenance(SOURCE),
        )


@dataclass
class _Search:
    run: Prepared
    measured: list[tuple[Batch, PlainRuns]]
    cost: CostMeter
    limits: Limits
    portions: Portions = field(default_factory=Portions)

    @property
    def setting(self) -> Setting:
        return self.run.setting

    def _respond(self, batch: Batch) -> Response:
        setting = self.setting
        return Response(
            setting.model, batch, setting.metric, setting.components,
            source=zeros, memory=setting.memory, cost=self.cost,
        )  # fmt: skip

    # The rows that matter, by the frozen gradient

    def rows(self) -> tuple[pd.DataFrame, Sequences]:
        """One line for each row with two or more keys above a threshold, in the order of sequences and layers."""
        tables: list[pd.DataFrame] = []
        ids: list[list[int]] = []
        examples: list[int] = []
        for batch, plain in self.measured:

            def of_rows(part: slice, batch: Batch = batch, plain: PlainRuns = plain) -> None:
                response = self._respond(batch.part(part))
                found = [table.assign(sequence=table["sequence"] + len(ids)) for table in self._of_batch(response)]
                response.require_same_as(plain.part(part))
                tables.extend(found)
                ids.extend(response.batch.base.tolist())
                examples.extend(response.batch.examples.tolist())

            self.portions.run(batch.rows, of_rows)
        table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({name: [] for name in COLUMNS})
        table = table.astype({"sequence": np.int64}).sort_values(
            ["sequence", "layer", "head", "query"], kind="stable", ignore_index=True
        )
        table["example"] = np.array(examples, np.int64)[table["sequence"]]
        tokenizer = tokenizer_of(self.setting.model)
        texts = tuple(tuple(tokenizer.decode([token]) for token in sequence) for sequence in ids)
        return table, Sequences(tuple(examples), texts)

    def _of_batch(self, response: Response) -> Iterator[pd.DataFrame]:
        gradients = self._gradients(response)
        layers = range(response.model.n_layers)
        if response.batch.positions < 2:
            return
        largest, second = [], []
        for layer in layers:
            scores, values_RHTS = _scores_and_values(response, layer, gradients[layer])
            contributions = scores.pattern * values_RHTS
            top = contributions.topk(2, dim=-1).values
            largest.append(top[..., 0].amax((1, 2)))
            second.append(top[..., 1])
        limit_R = torch.stack(largest).amax(0).clamp(min=0) * self.limits.relative
        for layer in layers:
            matters = second[layer] > limit_R.clamp(max=self.limits.threshold).view(-1, 1, 1)
            if matters.any():
                scores, values_RHTS = _scores_and_values(response, layer, gradients[layer])
                yield self._measured(layer, matters.nonzero(), scores, values_RHTS, limit_R)

    def _gradients(self, response: Response) -> dict[int, Tensor]:
        """(R, T, H, D) of each layer: the metric's gradient at the head outputs."""
        recording, start = response.record_graph()
        assert start == 0
        found: dict[int, Tensor] = {}

        def receive(place: tuple[str, int], gradient: Tensor) -> None:
            found[place[1]] = gradient.detach()

        places = [("heads", layer) for layer in range(response.model.n_layers)]
        stream_gradients(response.model, response.batch, response.metric, recording, start, places, receive, self.cost)
        return found

    def _measured(
        self, layer: int, at_n3: Tensor, scores: LayerScores, values_RHTS: Tensor, limit_R: Tensor
    ) -> pd.DataFrame:
        sequence, head, query = at_n3.unbind(1)
        sink = None if scores.sinks is None else scores.sinks[head].unsqueeze(1)
        rows = Rows(scores.scores[sequence, head, query], sink, values_RHTS[sequence, head, query])
        keys, contributions, effects = rows.keys, rows.contributions, rows.effects()
        pairs = {"weight": rows.pattern, "score": rows.scores, "contribution": contributions}
        columns: dict[str, Tensor] = {
            "sequence": sequence, "head": head, "query": query, "key_1": keys[:, 0], "key_2": keys[:, 1],
            **{f"{name}_{i + 1}": of_all.gather(1, keys)[:, i] for name, of_all in pairs.items() for i in (0, 1)},
            "contribution_all": contributions.sum(1),
            "keys_absolute": (contributions > self.limits.threshold).sum(1),
            "keys_relative": (contributions > limit_R[sequence].unsqueeze(1)).sum(1),
            **{f"frozen_{name}": effects[:, i] for i, name in enumerate(EFFECTS)},
            "gradient": rows.first_order(1.0),
            "tempered": rows.first_order(self.limits.temperature),
        }  # fmt: skip
        found = pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})
        found = found.astype({name: np.float64 for name in found if found[name].dtype.kind == "f"})
        found.insert(1, "layer", layer)
        if not np.isfinite(found.to_numpy(np.float64)).all():
            raise InterventionError(f"A contribution in layer {layer} is not finite; check the weights.")
        return found

    # The truth

    def rerun(self, rows: pd.DataFrame, generator: np.random.Generator, show: bool) -> pd.DataFrame:
        """The rows with true effects, where there are any, and whether they were drawn."""
        count = min(self.limits.rerun, len(rows))
        drawn = np.zeros(len(rows), bool)
        drawn[generator.choice(len(rows), count, replace=False)] = True
        worst = np.argsort(-hidden(rows, "frozen").to_numpy(float), kind="stable")[: WORST if count else 0]
        wanted = drawn.copy()
        wanted[worst] = True
        true = np.full((len(rows), len(EFFECTS)), np.nan)
        first = 0
        with progress_of("self-repair", int(wanted.sum()) * len(EFFECTS), 0, show) as advance:
            for batch, plain in self.measured:

                def of_rows(part: slice, batch: Batch = batch, plain: PlainRuns = plain, first: int = first) -> None:
                    sequences = range(first + part.start, first + part.stop)
                    mine = np.flatnonzero(wanted & rows["sequence"].isin(sequences).to_numpy())
                    if not len(mine):
                        return
                    response = self._respond(batch.part(part))
                    response.advance = advance
                    lanes = [lane for i in mine for lane in _lanes(rows.iloc[i], sequences.start)]
                    true[mine] = losses(response, lanes).view(len(mine), len(EFFECTS)).cpu().numpy()
                    response.require_same_as(plain.part(part))

                self.portions.run(batch.rows, of_rows)
                first += batch.rows
        if not np.isfinite(true[wanted]).all():
            raise InterventionError("The metric is not finite after an ablation; check the weights.")
        found = rows.assign(**{f"true_{name}": true[:, i] for i, name in enumerate(EFFECTS)}, drawn=drawn)
        return found[list(COLUMNS)].astype(dict.fromkeys(INTEGERS, np.int64))


def _scores_and_values(response: Response, layer: int, gradient_RTHD: Tensor) -> tuple[LayerScores, Tensor]:
    """The layer's scores, and (R, H, T, S) v_j . G of every key for every query."""
    scores = layer_scores(response, layer)
    precision = scores.scores.dtype
    values_RHSD = per_head(response.base.v[layer], response.model.n_heads).to(precision)
    return scores, gradient_RTHD.transpose(1, 2).to(precision) @ values_RHSD.transpose(2, 3)


def _lanes(row: Any, first: int) -> list[ScoreLane]:
    """The first key alone, the second alone, both."""
    one, two = (int(row.key_1), float(row.score_1)), (int(row.key_2), float(row.score_2))
    return [
        ScoreLane(
            int(row.sequence) - first, None, int(row.layer), int(row["head"]), int(row["query"]),
            (a[0], b[0]), (a[1], b[1]),
        )
        for a, b in ((one, one), (two, two), (one, two))
    ]  # fmt: skip
