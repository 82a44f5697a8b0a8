"""What ``assay explain`` does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rich.markup import escape

from assay.cli.console import make_console
from assay.cli.running import load_given
from assay.data.readers.rows import read_bytes
from assay.engine.batches import parse_memory
from assay.errors import ModelError, OptionError, instead_of
from assay.model.loading import DTYPES, fingerprint
from assay.report import describe
from assay.report.explanations import print_explanations, write_explanations
from assay.scores import configuration_hash
from assay.store import finished_run, require_writable
from assay.tokens import Explanations, Question, explain_all
from assay.tokens.attribution import require_numbers
from assay.tokens.baselines import require_baseline
from assay.tokens.methods import methods_named
from assay.tokens.questions import numbered, questions_of, require_one_kind


def carry_out(given: dict[str, Any], command: str) -> None:
    """Explain, keep, print.

    Args:
        given: the command's arguments by name.
        command: the command line that makes this run again.
    """
    model, revision, dtype, as_json = given["model"], given["revision"], given["dtype"], given["as_json"]
    chosen = methods_named(given["methods"])
    require_numbers(given["steps"], given["draws"])
    require_baseline(given["baseline"])
    parse_memory(given["memory"])
    if dtype not in DTYPES:
        raise OptionError(f"There is no dtype {dtype!r}. {instead_of(dtype, DTYPES)}")
    questions, source = _questions(given["text"], given["target"], given["against"], given["file"])
    asked = {name: given[name] for name in ("baseline", "chat", "steps", "seed", "faithfulness", "draws")}
    if given["faithfulness"]:  # how many tokens a target has is known later
        require_one_kind(
            [(asked.id, "without a contrast" if asked.against is None else "with a contrast") for asked in questions]
        )
    request: dict[str, Any] = {
        "command": "explain",
        "model": fingerprint(model, revision),
        **source,
        "methods": [method.name for method in chosen],
        **asked,
        "dtype": dtype,
        "device": given["device"],
        "device_map": given["device_map"],
        "max_memory": given["max_memory"],
    }
    folder = given["out"] or Path("runs") / f"explain-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        found = Explanations.load(folder)
        if not as_json:
            console.print("This run is finished already; nothing was computed.", style="dim")
    else:
        require_writable(folder)
        loaded = load_given(given)
        if fingerprint(model, revision) != request["model"]:
            raise ModelError(f"The files of {model} changed while they were read. Run the command again.")
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        names = [method.name for method in chosen]
        found = explain_all(loaded, questions, names, **asked, memory=given["memory"], progress=True)
        found.request.update(request)
        found.provenance["command"] = command
        found.save(folder, finish=lambda scratch: write_explanations(found, scratch / "report.html"))
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
        return
    print_explanations(console, found, folder)


def _questions(
    text: str | None, target: str | None, against: str | None, file: Path | None
) -> tuple[list[Question], dict[str, Any]]:
    """The questions, and what they are for the request."""
    if (text is None) == (file is None):
        raise OptionError("Give either a TEXT or a --file.")
    if file is None:
        return numbered([Question(text or "", target, against)]), {"text": text, "target": target, "against": against}
    if target is not None or against is not None:
        raise OptionError("Targets of a --file stand in it, as target and against; leave --target and --against out.")
    content = read_bytes(file)
    return questions_of(content, str(file)), {"file_sha256": hashlib.sha256(content).hexdigest()}
