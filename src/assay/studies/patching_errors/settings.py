"""What the study of patching errors measures: models, tasks, components, methods, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from assay.comparison import EXACT, parse_method
from assay.methods.method import Method
from assay.methods.registry import METHODS

MODELS = ("smollm2-135m", "gemma-3-270m")
HEADS, NEURONS = "heads", "neurons-pre"

ENDS = ("attribution-patching", "hvp", "two-point")
"""Read from the response's ends alone."""
PATH = (
    *("ms-hvp:segments=2", "ms-hvp:segments=5", "ms-hvp:segments=10", "integrated-hessians:steps=5"),
    *(f"integrated-gradients:rule=left:steps={n}" for n in (2, 5, 10)),
    *(f"integrated-gradients:rule=midpoint:steps={n}" for n in (1, 2, 5)),
    *(f"integrated-gradients:rule=trapezoid:steps={n}" for n in (6, 11)),
    "integrated-gradients:rule=gauss-legendre:steps=2",
)
"""Read from the response on the way."""
MORE_PATH = (
    *(f"integrated-gradients:rule=left:steps={n}" for n in (20, 35)),
    *(f"integrated-gradients:rule=midpoint:steps={n}" for n in (4, 10)),
    *(f"integrated-gradients:rule=gauss-legendre:steps={n}" for n in (3, 5)),
)
"""With ``--full``."""
OTHERS = ("atp-star", "local-curvature")
"""Not read from responses: run by themselves, where they are defined."""
SAMPLED = "hvp-sampled"
SCALES = tuple(k / 10 for k in range(1, 11))
"""Strengths at which the effect itself is known: |delta| scaled."""


@dataclass(frozen=True)
class Setting:
    """One model on one task, one kind of component."""

    model: str
    task: str
    corruption: str | None
    site: str

    @property
    def task_name(self) -> str:
        return self.task if self.corruption is None else f"{self.task} {self.corruption}"

    @property
    def folder(self) -> str:
        """Its name inside the study's folder."""
        return f"{self.model.replace('/', '-')}-{self.task_name.replace(' ', '-')}-{self.site}"


TASKS = (("ioi", "abc"), ("ioi", "random-token"), ("facts", None), ("greater-than", None))


@dataclass(frozen=True)
class Sizes:
    """How much is measured. Neurons are sampled by strata of the absolute mean first-order term."""

    pairs: int = 4
    largest: int = 100
    """Neurons of largest first-order term."""
    random: int = 300
    """Of all the others."""
    path: tuple[int, int, int] | None = (10, 20, 50)
    """Neurons whose response is also followed on the way: the largest of all, so many of the other ``largest``, so many
    of ``random``. All of the sample if None. Heads are followed all."""
    probes: int = 8
    seed: int = 0
    path_methods: tuple[str, ...] = PATH
    greater_than_neurons: bool = False

    @cached_property
    def on_ends(self) -> list[Method]:
        return [METHODS[EXACT], *map(parse_method, ENDS)]

    @cached_property
    def on_path(self) -> list[Method]:
        return [*self.on_ends, *map(parse_method, self.path_methods)]

    def settings(self) -> list[Setting]:
        """All of the study's, those that say most first."""
        found = [
            Setting(model, task, corruption, site)
            for task, corruption in TASKS
            for site in (HEADS, NEURONS)
            for model in MODELS
        ]
        return [each for each in found if self.includes(each)]

    def includes(self, setting: Setting) -> bool:
        return self.greater_than_neurons or setting.task != "greater-than" or setting.site == HEADS


DEFAULT = Sizes()
FULL = replace(DEFAULT, pairs=8, path=None, path_methods=(*PATH, *MORE_PATH), greater_than_neurons=True)
