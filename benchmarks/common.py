"""What all benchmarks share: options, one job for all sides, and sides in processes of their own that take turns."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results"
LIMIT_SECONDS = 900
Values = dict[str, np.ndarray]


# Options


def parser(
    description: str | None, name: str, *, pairs: int = 16, repeats: int = 3, peers: bool = False
) -> argparse.ArgumentParser:
    """Options that all benchmarks share, with this one's defaults."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2-135m", help="short name or folder, of the Llama architecture")
    options.add_argument("--pairs", type=int, default=pairs, help=f"prompt pairs (default {pairs})")
    options.add_argument("--repeats", type=int, default=repeats, help=f"rounds (default {repeats})")
    options.add_argument("--memory", default="2G", help="what assay may take beyond the weights (default 2G)")
    options.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="file of results")
    if peers:
        options.add_argument(
            "--python",
            type=Path,
            action="append",
            default=[],
            help="python of an environment that has a peer (benchmarks/README.md); may be given several times",
        )
    return options


# Sides


@dataclass
class Answer:
    """One run of a side."""

    seconds: float
    """Of the whole job, scaled up where the side did a part of it."""
    measured: float
    peak_bytes: int
    bytes_now: int | None
    values: Values


@dataclass
class Side:
    """A process that does a job each time it is asked.

    Args:
        script: in ``benchmarks/sides``.
        share: which part of the patches the job has; times are scaled up by it, but for what is done once.
    """

    name: str
    script: str
    job: dict[str, Any]
    python: Path = Path(sys.executable)
    share: float = 1.0
    versions: dict[str, str] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        stem = "".join(letter if letter.isalnum() else "-" for letter in self.name)
        (folder / f"{stem}.json").write_text(json.dumps(self.job))
        self._log = folder / f"{stem}.log"
        command = [str(self.python), str(HERE / "sides" / self.script), str(folder / f"{stem}.json")]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(self.python),
            )
        try:
            self.versions = {name: version for name, version in self._read()["versions"].items() if version}
            yield
        finally:
            self._process.kill()
            self._process.communicate()

    def ask(self) -> Answer:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reading tells why
        said = self._read()
        with np.load(said["values"]) as file:
            values = dict(file)
        Path(said["values"]).unlink()
        seconds = said["once"] + (said["seconds"] - said["once"]) / self.share
        return Answer(seconds, said["seconds"], said["peak_bytes"], said["bytes_now"], values)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(LIMIT_SECONDS, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])
            raise SystemExit(f"The side {self.name!r} ended (or took more than {LIMIT_SECONDS} s):\n{tail}")
        content: dict[str, Any] = json.loads(line)
        return content

    @property
    def seconds(self) -> list[float]:
        return [answer.seconds for answer in self.answers]

    @property
    def peak_bytes(self) -> int:
        return max(answer.peak_bytes for answer in self.answers)


def environment(python: Path) -> dict[str, str]:
    """One thread, no network; nothing of this environment's packages for another python."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    found = {**os.environ, **one, **offline, "TOKENIZERS_PARALLELISM": "false"}
    if python != Path(sys.executable):
        found.pop("PYTHONPATH", None)
    return found


def peers(pythons: Sequence[Path], wanted: Sequence[str]) -> dict[str, Path]:
    """Which peers these environments have, of those wanted."""
    found = {}
    for python in pythons:
        ask = "import importlib.metadata as m, sys; print(*(d.metadata['Name'].lower() for d in m.distributions()))"
        try:
            names = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.split()
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"--python {python} does not run: {error}") from error
        here = [name for name in ("transformer-lens", "nnsight") if name in names]
        if not here:
            raise SystemExit(f"--python {python}: neither transformer-lens nor nnsight is installed there.")
        found.update(dict.fromkeys((name for name in here if name in wanted), python))
    return found


def take_turns(sides: Sequence[Side], repeats: int, warmups: int = 0) -> None:
    """Ask every side ``repeats`` times, in reversed order every other round; warm-up rounds are not kept."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="assay-bench-")))
        for side in sides:
            print(f"  starting {side.name} ...", file=sys.stderr, flush=True)
            stack.enter_context(side.started(folder))
        take_turns_with(Side.ask, sides, repeats, warmups)


def take_turns_with(ask: Callable[[Side], Answer], sides: Sequence[Side], repeats: int, warmups: int = 0) -> None:
    """As `take_turns`, asking in another way."""
    for number in range(-warmups, repeats):
        for side in sides if number % 2 == 0 else reversed(sides):
            answer = ask(side)
            if number >= 0:
                side.answers.append(answer)
            name = "warm-up" if number < 0 else f"round {number + 1}"
            print(f"  {name}: {side.name} {answer.measured:.2f} s", file=sys.stderr, flush=True)


# Jobs


def make_job(model: str, n: int, memory: str = "2G", *, tokens: int | None = None) -> dict[str, Any]:
    """Prompts of the IOI task as text and as token ids, and where the model's folder is.

    Args:
        tokens: of every prompt, its pairs differing in the last five only; None: the task's own prompts.
    """
    import assay
    from assay.data.encoding import encode
    from assay.data.metrics import METRICS
    from assay.model.catalogue import CATALOGUE
    from assay.model.wheels import dequantised_folder

    loaded = assay.load(model)
    folder = dequantised_folder(CATALOGUE[model]) if model in CATALOGUE else Path(model)
    pairs = assay.tasks.ioi(loaded, n=n) if tokens is None else long_pairs(loaded, n, tokens)
    rows = encode(loaded, pairs, METRICS["logit-diff"])
    return {
        "folder": str(folder.resolve()),
        "task": pairs.task,
        "pairs": pairs.to_records(),
        "rows": [
            {"clean": row.clean, "corrupted": row.corrupted, "answer": row.tokens[0], "wrong": row.wrong}
            for row in rows
        ],
        "memory": memory,
        "n_layers": loaded.n_layers,
        "n_heads": loaded.n_heads,
        "n_kv_heads": loaded.n_kv_heads,
        "width": loaded.d_head,
        "d_model": loaded.d_model,
        "d_mlp": loaded.d_mlp,
    }


FILLER = "The morning was quiet and the streets were still wet from the rain that had fallen all through the night. "


def long_pairs(model: Any, n: int, tokens: int) -> Any:
    """IOI pairs that differ in the last five tokens only, behind a text that makes them ``tokens`` long."""
    from dataclasses import replace

    import assay
    from assay.data.encoding import prompt_ids

    words, made = (FILLER * (1 + tokens // 10)).split(), []
    for pair in assay.tasks.ioi(model, n=4 * n):
        for count in range(len(words)):
            front = " ".join(words[len(words) - count :])
            clean, corrupted = (f"{front} {text}".strip() for text in (pair.clean, pair.corrupted))
            ids, other = prompt_ids(model.tokenizer, clean), prompt_ids(model.tokenizer, corrupted)
            if len(ids) >= tokens:
                break
        if len(ids) == len(other) == tokens and ids[:-5] == other[:-5]:
            made.append(replace(pair, clean=clean, corrupted=corrupted))
    if len(made) < n:
        raise SystemExit(f"Only {len(made)} pairs of {tokens} tokens that differ in the last five only.")
    return assay.PromptPairs(tuple(made[:n]), task="ioi", metric="logit-diff")


def evenly(total: int, count: int) -> list[int]:
    """``count`` of the numbers below ``total``, evenly spread (all, if fewer)."""
    return sorted(set(np.linspace(0, total - 1, min(count, total)).round().astype(int).tolist()))
