"""What was measured of a setting, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.errors import StoreError
from assay.studies.folder import read_json
from assay.studies.gim_tokens.choosing import Chosen
from assay.studies.gim_tokens.measuring import STUDY, name_of, read_chosen
from assay.studies.gim_tokens.settings import Setting, Sizes
from assay.tokens import Explanation, Explanations, Faithfulness


@dataclass(frozen=True, eq=False)
class Measured:
    """A setting whose texts are chosen, and those of them that are explained."""

    setting: Setting
    chosen: Chosen
    texts: tuple[Explanation, ...]
    faithfulness: Faithfulness | None
    """Of all these texts; None if there are none."""

    @property
    def tokens(self) -> float:
        """Median number of a text."""
        return float(np.median([len(text.tokens) for text in self.texts])) if self.texts else float("nan")

    @property
    def gap(self) -> float:
        """Median over texts: what integrated gradients miss, as a share of the difference to the baseline."""
        shares = [
            abs(text.gaps["integrated-gradients"] / (text.value - text.baseline_value))
            for text in self.texts
            if "integrated-gradients" in text.gaps
        ]
        return float(np.median(shares)) if shares else float("nan")


def read_sizes(folder: Path) -> Sizes:
    """Of the study in a folder.

    Raises:
        StoreError: there is none, or it is damaged.
    """
    content = read_json(folder / STUDY, "a study of token attributions")
    try:
        return Sizes(**{**content, "contrasts": tuple(content["contrasts"])})
    except (KeyError, TypeError) as error:
        raise StoreError(f"{folder / STUDY} is damaged: {error}") from error


def read_setting(folder: Path, setting: Setting) -> Measured | None:
    """None if its texts were not chosen.

    Raises:
        StoreError: files are damaged or do not fit together.
    """
    inside = folder / setting.folder
    chosen = read_chosen(inside)
    if chosen is None:
        return None
    paths = [inside / name_of(text) for text in range(1, len(chosen.questions) + 1)]
    found = [Explanations.load(path) for path in paths if (path / "run.json").is_file()]
    measured = [each.faithfulness for each in found if each.faithfulness is not None]
    if len(measured) < len(found):
        raise StoreError(f"{inside} holds a text without its faithfulness.")
    return Measured(setting, chosen, tuple(each[0] for each in found), _joined(measured, inside))


def _joined(parts: list[Faithfulness], inside: Path) -> Faithfulness | None:
    if not parts:
        return None
    first = parts[0]
    if any(
        (part.methods, part.keys, part.metric_unit) != (first.methods, first.keys, first.metric_unit) for part in parts
    ):
        raise StoreError(f"Texts in {inside} are of other methods or measures than one another.")
    arrays = (np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in ("values", "spread", "full"))
    return Faithfulness(first.methods, first.metric_unit, first.keys, *arrays)
