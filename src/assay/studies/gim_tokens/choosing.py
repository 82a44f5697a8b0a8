"""Which texts are explained: those that the model answers rightly, as in arXiv 2505.17630, if it can do the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from assay.data.encoding import prompt_ids, tokenizer_of
from assay.data.readers.yes_no import YesNoPrompts
from assay.data.tasks import make_pairs
from assay.model import Model
from assay.studies.gim_tokens.settings import TASKS, Setting, Sizes
from assay.tokens import Question, explain_all


@dataclass(frozen=True)
class Chosen:
    """The texts of a setting, and how well the model does on all that were looked at."""

    questions: tuple[Question, ...]
    """Answered rightly; with the wrong answer as ``against``. None where the model cannot do the task."""
    scanned: int
    right: int
    """The answer is more probable than the wrong one."""
    difference: float
    """Mean of the right answer's logit less the wrong one's; of two labels, each counts half."""
    stderr: float
    too_long: int = 0
    source: str = ""
    """File or data set, and the hash of its content."""
    sha256: str = ""

    @property
    def passes(self) -> bool:
        """The model tells right from wrong, by two standard errors, and not by a leaning to one label."""
        return self.difference > 2 * self.stderr

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Self:
        """What `to_dict` gave."""
        return cls(**{**found, "questions": tuple(Question(**each) for each in found["questions"])})


def choose(model: Model, setting: Setting, sizes: Sizes, data: YesNoPrompts | None = None) -> Chosen:
    """Look at texts until enough of them are there, and keep the first that are answered rightly.

    Args:
        data: the rows of a data set.

    Raises:
        AssayError: as `assay.tasks.make_pairs` or `assay.explain_all`.
    """
    too_long, source, digest = 0, "", ""
    if data is None:
        count = sizes.scanned * sizes.texts_of(setting)
        pairs = make_pairs(model, setting.task, count, sizes.seed, **TASKS.get(setting.task, {}))
        candidates = [Question(p.clean, str(p.answer), str(p.wrong_answer), f"{i}") for i, p in enumerate(pairs, 1)]
    else:
        tokenizer = tokenizer_of(model)
        short = [p for p in data.prompts if len(prompt_ids(tokenizer, p.text)) <= sizes.longest]
        too_long, source, digest = len(data.prompts) - len(short), data.file, data.sha256
        candidates = [Question(p.text, *p.answers, p.id) for p in short[: sizes.scanned_rows]]
    looked = explain_all(model, candidates, "random", baseline=sizes.baseline) if candidates else ()
    margins = np.array([item.value for item in looked])
    right = [question for question, margin in zip(candidates, margins, strict=True) if margin > 0]
    difference, stderr = _difference(margins, [question.target for question in candidates])
    kept = tuple(right[: sizes.texts_of(setting)])
    found = Chosen(kept, len(candidates), len(right), difference, stderr, too_long, source, digest)
    return found if found.passes else replace(found, questions=())


def _difference(margins: np.ndarray, targets: Sequence[str | None]) -> tuple[float, float]:
    """Mean and standard error; where all answers are one of two, over the two labels' means.

    A model that prefers one label whatever the text gains on its texts what it loses on the other's.
    """
    labels = sorted(set(map(str, targets)))
    groups = [margins]
    if len(labels) == 2 and len(margins) >= 4:
        groups = [margins[[str(target) == label for target in targets]] for label in labels]
    if min(map(len, groups)) < 2:
        return 0.0, 0.0  # nothing is known
    mean = np.mean([group.mean() for group in groups])
    variance = sum(group.var(ddof=1) / len(group) for group in groups) / len(groups) ** 2
    return float(mean), float(np.sqrt(variance))
