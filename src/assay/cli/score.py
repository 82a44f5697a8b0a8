"""``assay score`` and ``assay demo``."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from assay.data import read_jsonl
from assay.data.metrics import metric_named
from assay.data.tasks import TASKS, make_pairs, require_task
from assay.engine.batches import DEFAULT_MEMORY, parse_memory
from assay.errors import OptionError
from assay.methods.method import DEFAULT_SITES, measure, require_direction, require_gradient
from assay.methods.registry import method_named
from assay.model.loading import DTYPES, fingerprint, load
from assay.report import print_baseline, print_scores, write_page
from assay.scores import Scores, configuration_hash
from assay.sites import require_sites
from assay.store import finished_run, require_writable

Model = Annotated[
    str, typer.Argument(help="Short name (assay list models), local folder, GGUF file, or hub id.", show_default=False)
]
Task = Annotated[str, typer.Option(help="A task (assay list tasks) or a .jsonl file of prompt pairs.")]
Number = Annotated[int | None, typer.Option("--n", help="Prompt pairs. Default: 16 of a task, all of a file.")]
Out = Annotated[Path | None, typer.Option(help="Run folder. Default: runs/score-<task>-<hash>.")]


def score(
    model: Model,
    task: Task,
    n: Number = None,
    seed: Annotated[int, typer.Option(help="Of the task's prompts and of methods that draw.")] = 0,
    sites: Annotated[str, typer.Option(help="Comma-separated (assay list sites).")] = DEFAULT_SITES,
    method: Annotated[str, typer.Option(help="See assay list methods.")] = "activation-patching",
    metric: Annotated[str | None, typer.Option(help="See assay list metrics. Default: the task's.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="denoise: clean into corrupted (default). noise: corrupted into clean."),
    ] = None,
    corruption: Annotated[str | None, typer.Option(help="Of ioi: abc (default), swap, random-token.")] = None,
    length: Annotated[int | None, typer.Option(help="Of sort and reverse: numbers per sequence (default 5).")] = None,
    mean: Annotated[str, typer.Option(help="Of mean-ablation: position or all-positions.")] = "position",
    reference: Annotated[
        Path | None, typer.Option(help="Of mean-ablation: .jsonl pairs whose corrupted prompts are averaged.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"Of the weights: {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    revision: Annotated[str | None, typer.Option(help="Of a hub model: branch, tag or commit.")] = None,
    memory: Annotated[str, typer.Option(help="Working memory beyond the weights; sets batch sizes.")] = DEFAULT_MEMORY,
    top: Annotated[int, typer.Option(help="Components to print.")] = 20,
    skip: Annotated[bool, typer.Option(help="--no-skip also runs what is known to change nothing.")] = True,
    force: Annotated[bool, typer.Option(help="Go on although the model cannot do the task.")] = False,
    out: Out = None,
) -> None:
    """Score every component of MODEL on a task: how much does each drive the behaviour?"""
    configuration = _configuration(
        model=model, task=task, n=n, seed=seed, sites=sites, method=method, metric=metric, direction=direction,
        corruption=corruption, length=length, mean=mean, reference=reference, dtype=dtype, revision=revision,
        skip=skip, force=force,
    )  # fmt: skip
    _check_options(sites, method, metric, direction, mean, dtype, memory, top)
    name = Path(task).stem if task not in TASKS else task
    folder = out or Path("runs") / f"score-{name}-{configuration_hash(configuration)}"
    console = Console()
    if finished_run(folder, configuration):
        console.print(f"This run is finished already; nothing was computed. Folder: {escape(str(folder))}", style="dim")
        print_scores(console, Scores.load(folder), top, str(folder))
        return
    require_writable(folder)
    loaded = load(model, dtype=dtype, device=device, revision=revision)
    console.print(escape(repr(loaded)), style="dim", highlight=False)
    pairs = make_pairs(loaded, task, n if n is not None or task not in TASKS else 16, seed,
                       corruption=corruption, length=length)  # fmt: skip
    scores = measure(
        method_named(method),
        loaded,
        pairs,
        sites=sites,
        metric=metric,
        direction=direction,  # type: ignore[arg-type]  # checked above
        memory=memory,
        seed=seed,
        mean=mean,  # type: ignore[arg-type]
        reference=read_jsonl(reference) if reference else None,
        skip=skip,
        force=force,
        progress=True,
        on_baseline=lambda baseline, chosen: print_baseline(console, baseline, chosen.name, chosen.unit),
        configuration=configuration,
    )
    scores.provenance["command"] = _command(configuration, out)
    scores.save(folder, finish=lambda scratch: write_page(scores, scratch / "report.html"))
    print_scores(console, scores, top, str(folder))


def demo(out: Out = None) -> None:
    """Run the main job on a small model that the package carries: which parts sort the numbers?"""
    score(model="sequence-sort", task="sort", out=out)


def _configuration(**options: Any) -> dict[str, Any]:
    """All that determines the numbers, with the content of files by their hash."""
    require_task(options["task"])
    configuration = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    configuration["model"] = fingerprint(options["model"], options["revision"])
    for name in ("task", "reference"):
        given = options[name]
        if given is not None and given not in TASKS:
            digest = hashlib.sha256(Path(given).read_bytes()).hexdigest() if Path(given).is_file() else None
            configuration[name] = {"file": str(given), "sha256": digest}
    return configuration


def _check_options(
    sites: str, method: str, metric: str | None, direction: str | None, mean: str, dtype: str, memory: str, top: int
) -> None:
    """Refuse what can be refused before a model is loaded."""
    require_sites([kind.strip() for kind in sites.split(",") if kind.strip()])
    chosen = method_named(method)
    require_direction(chosen, direction)
    if metric is not None:
        require_gradient(chosen, metric_named(metric))
    if mean not in ("position", "all-positions"):
        raise OptionError(f"--mean is position or all-positions, not {mean!r}.")
    if dtype not in DTYPES:
        raise OptionError(f"There is no dtype {dtype!r}. Choose one of {', '.join(DTYPES)}.")
    if top < 1:
        raise OptionError(f"--top must be at least 1, not {top}.")
    parse_memory(memory)


def _command(configuration: dict[str, Any], out: Path | None) -> str:
    """The command line that makes this run again."""
    words = ["assay", "score", configuration["model"]["model"]]
    for name, value in configuration.items():
        if name == "model" or value is None:
            continue
        if isinstance(value, dict):
            value = value["file"]
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    if out is not None:
        words += ["--out", str(out)]
    return shlex.join(words)
