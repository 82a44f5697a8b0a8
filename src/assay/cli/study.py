"""``assay study``: experiments of papers, end to end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from assay.cli import options
from assay.cli.console import make_console
from assay.cli.early import processes_of_study
from assay.cli.with_ray import WithRay
from assay.errors import OptionError

if TYPE_CHECKING:
    from assay.data.readers import PromptSource
    from assay.data.readers.yes_no import YesNoPrompts

study = typer.Typer(no_args_is_help=True, help="Experiments of papers, end to end.")


@study.callback()
def studies() -> None:
    """Experiments of papers, end to end."""


@study.command("patching-errors", cls=WithRay)
def patching_errors(
    full: Annotated[
        bool, typer.Option("--full", help="8 pairs, all sampled neurons followed, more rules of integration.")
    ] = False,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/study-patching-errors[-full].")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Markdown file to write. Default: patching-errors.md in the folder.")
    ] = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Measure nothing; write the page of what is there.")
    ] = False,
) -> None:
    """How far each cheap score is from the exact effect, on SmolLM2-135M and Gemma 3 270M (arXiv 2606.09899).

    What is measured is kept: stopped at any moment, the same command goes on.
    """
    from assay.model.loading import load
    from assay.studies.patching_errors import DEFAULT, FULL, carry_out, write_page

    sizes = FULL if full else DEFAULT
    folder = out or Path("runs") / f"study-patching-errors{'-full' if full else ''}"
    console = make_console()
    if not page_only:
        with processes_of_study(jobs, ray) as processes:
            carry_out(
                folder, sizes, sizes.settings(), load, lambda what: console.print(escape(what)), progress=True,
                jobs=processes,
            )  # fmt: skip
    written = write_page(folder, page or folder / "patching-errors.md")
    console.print(f"Page: {escape(str(written[0]))}, with {len(written) - 1} figures.", style="dim", soft_wrap=True)


@study.command("gim-tokens", cls=WithRay)
def gim_tokens(
    full: Annotated[
        bool, typer.Option("--full", help="Several times as many and longer texts, contrasts on every task.")
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILE or NAME=hf:owner/name, several times: boolq, fever, scifact, movies, hatexplain, twitter.",
            metavar="NAME=FILE",
        ),
    ] = None,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/study-gim-tokens[-full].")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Markdown file to write. Default: gim-tokens.md in the folder.")
    ] = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Measure nothing; write the page of what is there.")
    ] = False,
) -> None:
    """Do GIM's first tokens matter more than those of other attributions? (arXiv 2505.17630.)

    Comprehensiveness and sufficiency on SmolLM2-135M and Gemma 3 270M, with GIM's parts left out in turn. What is
    measured is kept: stopped at any moment, the same command goes on.
    """
    from assay.model.loading import load
    from assay.studies import gim_tokens as gim

    sizes = gim.FULL if full else gim.DEFAULT
    folder = out or Path("runs") / f"study-gim-tokens{'-full' if full else ''}"
    console = make_console()
    if not page_only:
        rows = _data_sets(data or [])
        settings = sizes.settings(list(rows))
        with processes_of_study(jobs, ray) as processes:
            gim.carry_out(folder, sizes, settings, load, rows, lambda what: console.print(escape(what)), processes)
    written = gim.write_page(folder, page or folder / "gim-tokens.md")
    console.print(f"Page: {escape(str(written[0]))}, with {len(written) - 1} figures.", style="dim", soft_wrap=True)


@study.command("gim-circuits", cls=WithRay)
def gim_circuits(
    full: Annotated[
        bool,
        typer.Option("--full", help="32 + 32 prompts, MIB's ten sizes of circuits, 100 steps of masks, all tasks."),
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILE or NAME=hf:owner/name, several times: questions with four choices, such as ARC.",
            metavar="NAME=FILE",
        ),
    ] = None,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/study-gim-circuits[-full].")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Markdown file to write. Default: gim-circuits.md in the folder.")
    ] = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Measure nothing; write the page of what is there.")
    ] = False,
) -> None:
    """Do GIM's scores make better circuits than those of other methods? (arXiv 2505.17630, arXiv 2504.13151.)

    MIB's CPR and CMD on SmolLM2-135M and Gemma 3 270M, with GIM's parts left out in turn, learned masks and ensembles.
    What is measured is kept: stopped at any moment, the same command goes on.
    """
    from assay.model.loading import load
    from assay.studies import gim_circuits as circuits

    sizes = circuits.FULL if full else circuits.DEFAULT
    folder = out or Path("runs") / f"study-gim-circuits{'-full' if full else ''}"
    console = make_console()
    if not page_only:
        questions = _questions(data or [])
        settings = sizes.settings(list(questions))
        with processes_of_study(jobs, ray) as processes:
            circuits.carry_out(
                folder, sizes, settings, load, questions, lambda what: console.print(escape(what)), processes
            )
    written = circuits.write_page(folder, page or folder / "gim-circuits.md")
    console.print(f"Page: {escape(str(written[0]))}, with {len(written) - 1} figures.", style="dim", soft_wrap=True)


@study.command("heroes", cls=WithRay)
def heroes(
    seeds: Annotated[int, typer.Option(help="Trained models of each sequence task.")] = 10,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="2 500 examples, every checkpoint, more prompts and all measures of language models."
        ),
    ] = False,
    models: Annotated[
        Path | None,
        typer.Option(
            help="Folder of trainings that assay train made, DIR/reverse and DIR/sort. Default: the study trains its "
            "own.",
            metavar="DIR",
        ),
    ] = None,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/study-heroes[-full].")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown file to write. Default: heroes.md in the folder.")] = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Measure nothing; write the page of what is there.")
    ] = False,
) -> None:
    """Does the size of a gradient tell what matters? (arXiv 2602.01442.)

    Heroes, bloats, their joint ablation and pruning on models trained to reverse and to sort, along training, and on
    SmolLM2-135M and Gemma 3 270M. What is measured is kept: stopped at any moment, the same command goes on.
    """
    from dataclasses import replace

    from assay.model.loading import load
    from assay.studies import heroes as hidden

    if seeds < 1:
        raise OptionError(f"--seeds must be at least 1, not {seeds}.")
    sizes = replace(hidden.FULL if full else hidden.DEFAULT, seeds=seeds)
    folder = out or Path("runs") / f"study-heroes{'-full' if full else ''}"
    console = make_console()
    if not page_only:
        with processes_of_study(jobs, ray) as processes:
            done = hidden.carry_out(
                folder, sizes, sizes.settings(), load, models, lambda what: console.print(escape(what)), processes
            )
        if not done:
            console.print("Some models are not trained yet; the same command takes them up.")
    written = hidden.write_page(folder, page or folder / "heroes.md")
    console.print(f"Page: {escape(str(written[0]))}, with {len(written) - 1} figures.", style="dim", soft_wrap=True)


def _questions(given: list[str]) -> dict[str, PromptSource]:
    from assay.data.readers import open_prompts
    from assay.studies.gim_circuits.settings import TASKS, Setting

    found: dict[str, PromptSource] = {}
    taken = {Setting("", task).folder for task in TASKS}  # folders, in which "arithmetic, plus" has no comma
    for each in given:
        name, equals, source = each.partition("=")
        known = name in found or Setting("", name).folder in taken
        if not equals or not source or known or not re.fullmatch(r"[\w.-]+", name):
            raise OptionError(f"--data is like arc-easy=FILE, each name once and none of a task; not {each!r}.")
        found[name] = open_prompts(source)
        if found[name].kind != "choices":
            raise OptionError(f"{source} has no questions with four choices (question, choices, answerKey).")
    return found


def _data_sets(given: list[str]) -> dict[str, YesNoPrompts]:
    from assay.data.readers.yes_no import read_yes_no

    found: dict[str, YesNoPrompts] = {}
    for each in given:
        name, equals, source = each.partition("=")
        if not equals or not source or name in found:
            raise OptionError(f"--data is like boolq=FILE or boolq=hf:owner/name, each name once; not {each!r}.")
        found[name] = read_yes_no(name, source)
    return found
