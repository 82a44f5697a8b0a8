"""Explains the texts of every setting into a folder, one run folder a text. Whatever is finished is not done again.

FOLDER/study.json                   sizes
FOLDER/<setting>/texts.json         which texts are explained, and how well the model does
FOLDER/<setting>/001, 002, ...      scores of every method for a text, and how faithful they are
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from assay.data.readers.yes_no import YesNoPrompts
from assay.errors import DataError, StoreError
from assay.methods.sharded import Jobs
from assay.methods.spread import spread
from assay.model import Model
from assay.store import require_writable
from assay.store.differences import differences
from assay.studies.folder import read_json, write_json
from assay.studies.gim_tokens.choosing import Chosen, choose
from assay.studies.gim_tokens.settings import METHODS, Setting, Sizes
from assay.tokens import Explanations, explain_all

STUDY, TEXTS = "study.json", "texts.json"


def carry_out(
    folder: Path,
    sizes: Sizes,
    settings: Sequence[Setting],
    load: Callable[[str], Model],
    data: Mapping[str, YesNoPrompts] | None = None,
    say: Callable[[str], object] = lambda _: None,
    jobs: Jobs = None,
) -> None:
    """Explain all texts that are not explained yet.

    Args:
        load: a model by its name; called once for consecutive settings of a model, and only where something is missing.
        data: the rows of data sets, by their names.
        say: told of each setting and text.
        jobs: as in `assay.measure`; texts are explained side by side.

    Raises:
        StoreError: the folder holds a study of other sizes or data, or cannot be written.
        AssayError: as `assay.explain_all`.
    """
    begin(folder, sizes)
    model: tuple[str, Model] | None = None
    for number, setting in enumerate(settings, 1):
        title = f"{number} of {len(settings)}: {setting.model}, {setting.task_name}"
        rows = (data or {}).get(setting.task)
        inside = folder / setting.folder
        chosen = read_chosen(inside, rows)
        if chosen is not None and not unfinished(inside, chosen):
            say(f"{title}: measured already")
            continue
        say(title)
        if model is None or model[0] != setting.model:
            model = setting.model, load(setting.model)
        if chosen is None:
            if setting.is_data_set and rows is None:
                raise DataError(f"The data set {setting.task} is not there: --data {setting.task}=FILE.")
            chosen = choose(model[1], setting, sizes, rows)
            write_json(inside / TEXTS, chosen.to_dict())
        if not chosen.passes:
            say("  left out: the model does not tell right answers from wrong ones")
        tasks = [_Text(sizes, setting, text, chosen.questions[text - 1]) for text in unfinished(inside, chosen)]
        for task in tasks:
            require_writable(inside / name_of(task.number))
        with closing(spread(_explain, tasks, model[1], jobs)) as explained:
            for task, found in explained:
                found.save(inside / name_of(task.number))
                say(f"  text {task.number} of {len(chosen.questions)}")


def begin(folder: Path, sizes: Sizes) -> None:
    """Note the sizes in the folder, or see that they are those that are noted there."""
    now = json.loads(json.dumps(asdict(sizes)))
    if not (folder / STUDY).exists():
        write_json(folder / STUDY, now)
    elif different := differences(read_json(folder / STUDY, "a study of token attributions"), now):
        raise StoreError(f"{folder} holds a study of other sizes:\n" + "\n".join(different) + "\nChoose another --out.")


def read_chosen(inside: Path, rows: YesNoPrompts | None = None) -> Chosen | None:
    """The texts of a setting; None if they were not chosen yet.

    Raises:
        StoreError: damaged, or chosen from other rows than these.
    """
    if not (inside / TEXTS).is_file():
        return None
    try:
        found = Chosen.from_dict(read_json(inside / TEXTS, "a study of token attributions"))
    except (KeyError, TypeError) as error:
        raise StoreError(f"{inside / TEXTS} is damaged: {error}") from error
    if rows is not None and rows.sha256 != found.sha256:
        raise StoreError(
            f"{inside} holds texts of {found.source} ({found.sha256[:12]}), and {rows.file} has other content "
            f"({rows.sha256[:12]}). Choose another --out."
        )
    return found


def name_of(text: int) -> str:
    """Of a text's folder, counted from 1."""
    return f"{text:03d}"


def unfinished(inside: Path, chosen: Chosen) -> list[int]:
    """Texts that are not explained yet, counted from 1."""
    texts = range(1, len(chosen.questions) + 1)
    return [text for text in texts if not (inside / name_of(text) / "run.json").is_file()]


@dataclass(frozen=True)
class _Text:
    sizes: Sizes
    setting: Setting
    number: int
    """Counted from 1."""
    question: Any

    def __str__(self) -> str:
        return f"text {self.number} of {self.setting.folder}"


def _explain(model: Model, text: _Text) -> Explanations:
    sizes, setting, question = text.sizes, text.setting, text.question
    return explain_all(
        model,
        [question if setting.contrast else replace(question, against=None)],
        METHODS,
        baseline=sizes.baseline,
        steps=sizes.steps,
        faithfulness=True,
        draws=sizes.draws,
        curves=setting.curves,
        seed=sizes.seed + text.number,  # texts of a length would share their random orders otherwise
    )
