"""What comes back: scores for every token of every text, and what they are of."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay.errors import StoreError
from assay.shown import Shown
from assay.store import RunFiles, read_run, write_run
from assay.tokens.faithfulness import Faithfulness

Numbers = NDArray[np.float64]
KIND = "explanation"


@dataclass(frozen=True, eq=False)
class Explanation:
    """One text: what each of its T tokens adds to the target, by each method."""

    id: str
    text: str
    tokens: tuple[str, ...]
    """T pieces of the text as the model read it, in front special tokens that the tokenizer added."""
    token_ids: tuple[int, ...]
    fixed: tuple[bool, ...]
    """T: special tokens, which the baseline keeps; they score 0."""
    target: str
    target_ids: tuple[int, ...]
    target_is_models_own: bool
    """Nobody chose the target: it is the model's most probable next token."""
    against: str | None
    against_ids: tuple[int, ...]
    metric: str
    unit: str
    """Of the metric, and of scores that measure or estimate it: leave-one-out, integrated gradients, DeepLIFT and
    gradient x input. Those of GIM and the LRP rules only rank, and random ones are a control."""
    value: float
    """Of the metric, on the text."""
    baseline_value: float
    """With every token replaced, special ones apart."""
    probability: float
    """Of the target on the text, less that of the contrast."""
    baseline: str
    scores: dict[str, Numbers]
    """Method to T scores; what they are, and of which unit, depends on the method: see ``unit``."""
    gaps: dict[str, float]
    """Methods whose scores should sum to ``value - baseline_value``: that, less their sum."""

    def top(self, method: str | None = None, k: int = 5) -> pd.DataFrame:
        """The k tokens that speak most for the target."""
        method = method or next(iter(self.scores))
        frame = pd.DataFrame({"position": range(len(self.tokens)), "token": self.tokens, "score": self.scores[method]})
        return frame[~np.array(self.fixed)].sort_values("score", ascending=False, kind="stable").head(k)

    def __repr__(self) -> str:
        best = self.top(k=3)
        listed = ", ".join(f"{row.token!r} {row.score:+.3g}" for row in best.itertuples())
        return f"Explanation({self.text!r} -> {self.target!r}, {next(iter(self.scores))}: {listed})"


RECORD = tuple(name for name in Explanation.__dataclass_fields__ if name not in ("scores", "gaps"))


@dataclass(frozen=True, eq=False)
class Explanations(Shown, Sequence[Explanation]):
    """Texts with their scores, and how those were made."""

    items: tuple[Explanation, ...]
    methods: tuple[str, ...]
    configuration: dict[str, Any]
    provenance: dict[str, Any]
    cost: dict[str, Any]
    request: dict[str, Any] = field(default_factory=dict)
    faithfulness: Faithfulness | None = None
    """Where it was measured."""

    @overload
    def __getitem__(self, index: int) -> Explanation: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Explanation, ...]: ...
    def __getitem__(self, index: int | slice) -> Explanation | tuple[Explanation, ...]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.items)

    def to_pandas(self) -> pd.DataFrame:
        """One row for each method, text and token."""
        frames = [
            pd.DataFrame(
                {
                    "method": method,
                    "example": number,
                    "id": item.id,
                    "position": range(len(item.tokens)),
                    "token_id": item.token_ids,
                    "token": item.tokens,
                    "fixed": item.fixed,
                    "value": item.scores[method],
                }
            )
            for method in self.methods
            for number, item in enumerate(self)
        ]
        return pd.concat(frames, ignore_index=True)

    def _summary(self) -> pd.DataFrame:
        """One row for each method and text."""
        return pd.DataFrame(
            [
                {
                    "method": method,
                    "example": number,
                    "id": item.id,
                    "sum": float(item.scores[method].sum()),
                    "gap": item.gaps.get(method, np.nan),
                }
                for method in self.methods
                for number, item in enumerate(self)
            ]
        )

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
        run = {
            "kind": KIND,
            **{name: getattr(self, name) for name in ("methods", "configuration", "provenance", "cost", "request")},
            "faithfulness": self.faithfulness and self.faithfulness.to_dict(),
        }
        prompts = [{name: asdict(item)[name] for name in RECORD} for item in self]
        tensors = {
            name: np.array([getattr(item, name) for item in self])
            for name in ("value", "baseline_value", "probability")
        }
        return write_run(folder, RunFiles(run, self.to_pandas(), self._summary(), prompts, tensors), overwrite, finish)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a run folder that `save` or ``assay explain`` wrote.

        Raises:
            StoreError: not such a folder, or a damaged one.
        """
        files = read_run(folder)
        if files.run.get("kind") != KIND:
            raise StoreError(f"{folder} holds no token attributions.")
        try:
            return cls._from(files)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"The files of {folder} do not fit together: {error}") from error

    @classmethod
    def _from(cls, files: RunFiles) -> Self:
        run, items = files.run, []
        methods = tuple(run["methods"])
        scores = {key: frame["value"].to_numpy(float) for key, frame in files.scores.groupby(["method", "example"])}
        gaps = files.components.set_index(["method", "example"])["gap"]
        for number, record in enumerate(files.prompts):
            given: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
            }
            mine = {method: scores[method, number] for method in methods}
            if any(len(values) != len(given["tokens"]) for values in mine.values()):
                raise ValueError(f"text {number} has {len(given['tokens'])} tokens, and scores of another number")
            item_gaps = {
                method: float(gaps[method, number])
                for method in methods
                if gaps[method, number] == gaps[method, number]
            }
            items.append(Explanation(**given, scores=mine, gaps=item_gaps))
        kept = {name: run[name] for name in ("configuration", "provenance", "cost", "request")}
        measured = run["faithfulness"] and Faithfulness.from_dict(run["faithfulness"])
        return cls(tuple(items), methods, **kept, faithfulness=measured)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        texts = []
        for item in self:
            record = {name: value for name, value in asdict(item).items() if name in RECORD}
            scores = {method: values.tolist() for method, values in item.scores.items()}
            texts.append({**record, "scores": scores, "gaps": item.gaps})
        measured = self.faithfulness and self.faithfulness.to_dict()
        found = {"methods": self.methods, "texts": texts, "faithfulness": measured}
        return {**found, **{name: getattr(self, name) for name in ("cost", "configuration", "provenance")}}

    def __repr__(self) -> str:
        model = self.provenance.get("model", {}).get("name", "?")
        return f"Explanations({model}: {len(self)} texts, {', '.join(self.methods)})"


def visible(token: str) -> str:
    """A token for people: control characters, line breaks and what turns the direction of writing as escapes."""
    shown = []
    for character in token:
        if unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp"):
            shown.append(json.dumps(character)[1:-1] if ord(character) < 0x10000 else f"\\U{ord(character):08x}")
        else:
            shown.append(character)
    return "".join(shown)
