"""``assay explain``."""

from __future__ import annotations

import hashlib
import inspect
import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.data.readers.rows import read_bytes
from assay.engine.batches import DEFAULT_MEMORY, parse_memory
from assay.errors import ModelError, OptionError, instead_of
from assay.model.loading import DTYPES, fingerprint, load
from assay.report import describe
from assay.report.explanations import print_explanations, write_explanations
from assay.scores import configuration_hash
from assay.store import finished_run, require_writable
from assay.tokens import METHODS, Explanations, Question, explain_all
from assay.tokens.attribution import require_numbers
from assay.tokens.baselines import DEFAULT as DEFAULT_BASELINE
from assay.tokens.faithfulness import DRAWS
from assay.tokens.methods import DEFAULT_METHOD, DEFAULT_STEPS, methods_named
from assay.tokens.questions import questions_of


def explain(
    model: options.Model,
    text: Annotated[str | None, typer.Argument(help="The prompt; or give --file.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help='What continues it, as in " Paris". Default: the model\'s most probable token.')
    ] = None,
    against: Annotated[
        str | None, typer.Option(help='Another continuation, as in " Rome": the difference is explained.')
    ] = None,
    methods: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(METHODS)}.")] = DEFAULT_METHOD,
    baseline: Annotated[
        str, typer.Option(help="What a token is compared with: space, pad, mean, or a text of one token or as many.")
    ] = DEFAULT_BASELINE,
    file: Annotated[
        Path | None, typer.Option(help="JSON Lines with text and, where wanted, target, against and id.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put texts into the model's chat template.")] = False,
    faithfulness: Annotated[
        bool, typer.Option("--faithfulness", help="Measure comprehensiveness and sufficiency of the methods.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Of integrated-gradients.")] = DEFAULT_STEPS,
    draws: Annotated[int, typer.Option(help="Of --faithfulness: random orders to compare with.")] = DRAWS,
    seed: Annotated[int, typer.Option(help="Of random scores and orders.")] = 0,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    revision: options.Revision = None,
    memory: options.Memory = DEFAULT_MEMORY,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/explain-HASH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of coloured text.")] = False,
) -> None:
    """Which tokens of TEXT make MODEL say what it says next?"""
    given = dict(locals())
    chosen = methods_named(methods)
    require_numbers(steps, draws)
    parse_memory(memory)
    if dtype not in DTYPES:
        raise OptionError(f"There is no dtype {dtype!r}. {instead_of(dtype, DTYPES)}")
    questions, source = _questions(text, target, against, file)
    request: dict[str, Any] = {
        "command": "explain",
        "model": fingerprint(model, revision),
        **source,
        "methods": [method.name for method in chosen],
        **{
            name: given[name]
            for name in ("baseline", "chat", "steps", "seed", "faithfulness", "draws", "dtype", "device")
        },
    }
    folder = out or Path("runs") / f"explain-{configuration_hash(request)}"
    console = make_console()
    if finished_run(folder, request):
        found = Explanations.load(folder)
        if not as_json:
            console.print("This run is finished already; nothing was computed.", style="dim")
    else:
        require_writable(folder)
        loaded = load(model, dtype=dtype, device=device, revision=revision)
        if fingerprint(model, revision) != request["model"]:
            raise ModelError(f"The files of {model} changed while they were read. Run the command again.")
        if not as_json:
            console.print(escape(describe(loaded)), style="dim", highlight=False)
        found = explain_all(
            loaded, questions, [method.name for method in chosen], baseline=baseline, chat=chat, steps=steps,
            faithfulness=faithfulness, draws=draws, seed=seed, memory=memory, progress=True,
        )  # fmt: skip
        found.request.update(request)
        found.provenance["command"] = _command_line(given)
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
        return [Question(text or "", target, against)], {"text": text, "target": target, "against": against}
    if target is not None or against is not None:
        raise OptionError("Targets of a --file stand in it, as target and against; leave --target and --against out.")
    content = read_bytes(file)
    return questions_of(content, str(file)), {"file_sha256": hashlib.sha256(content).hexdigest()}


def _command_line(given: dict[str, Any]) -> str:
    defaults = {name: parameter.default for name, parameter in inspect.signature(explain).parameters.items()}
    words = ["assay", "explain", given["model"], *([given["text"]] if given["text"] is not None else [])]
    for option, value in given.items():
        if option in ("model", "text", "as_json") or value == defaults[option]:
            continue
        words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return shlex.join(words)
