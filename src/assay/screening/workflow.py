"""The workflow: screen by attribution patching, probe curvature, flag, calibrate, patch until the top k stands.

What each step rests on is said in `assay.reliability`; here it meets a model, a price list and a budget.

1. Baseline, and what model and metric allow (`abilities`).
2. Kinds of sites for which exact runs of every component cost no more than screening would at least are *exhausted*.
3. Estimates for the others: first order at both ends, and curvature from random probes, each kind by itself.
4. Flags: where curvature surely exceeds its share. With ``fix`` = exact they are patched like all others, as far as the
   top k needs them; their intervals are wide already, since curvature is part of the scale. With hvp or ms-hvp the
   flagged components whose interval may reach the top k get that method's estimate, before anything is calibrated: the
   sample then holds for it as for any other estimate. They are still estimates.
5. Pilot, calibration and search by exact patching (`assay.reliability.screen`). Components that no patch changes are
   known, their effect is 0; they are no part of the population that the sample is drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Literal, Never, get_args

import numpy as np
from numpy.typing import NDArray

from assay.data.baseline import Baseline
from assay.data.encoding import Align
from assay.data.metrics import Metric
from assay.engine.batches import DEFAULT_MEMORY, Direction
from assay.engine.cost import CostMeter
from assay.engine.curvature import require_probes
from assay.errors import OptionError, refuse_unknown
from assay.methods import METHODS
from assay.methods.method import AnyPairs, Method
from assay.methods.plan import make_plan
from assay.methods.preparation import Prepared, prepared
from assay.methods.sharded import Computer, Jobs, require_finished
from assay.model import Model
from assay.reliability import Estimates, exhaustion_is_cheaper, flagged, smallest_sample
from assay.reliability import screen as screen_arrays
from assay.reliability.calibration import sample_size
from assay.screening.abilities import abilities
from assay.screening.assembly import Known, assemble, stages_of
from assay.screening.estimates import (
    BASE,
    FAR_END,
    FIRST_ORDER,
    MOVES,
    QUADRATIC,
    SEGMENTS,
    VARIANCE,
    correction_by,
    estimates_with,
)
from assay.screening.exhaustion import kinds_to_exhaust
from assay.screening.prices import Prices
from assay.screening.result import ScreenedScores, Stage
from assay.sites import AnySites
from assay.store import RunFolder

Fix = Literal["exact", "hvp", "ms-hvp"]
FIXES: tuple[str, ...] = get_args(Fix)
NAME = "screen"
LIMIT = "budget"
"""The option that ends a run early, and is no part of what makes two runs the same."""
SOURCE_NOTE = "attribution patching and curvature (Zhang & Wang, arXiv 2606.09899), split conformal intervals"
EXACT = METHODS["activation-patching"]


@dataclass(frozen=True)
class Options:
    """What is asked of a screening, beyond what every method takes.

    Raises:
        OptionError: a value out of range.
    """

    top: int = 10
    level: float = 0.95
    probes: int = 8
    threshold: float = 0.5
    fix: Fix = "exact"
    budget: float | None = None

    def __post_init__(self) -> None:
        smallest_sample(self.level)
        if self.top < 1:
            raise OptionError(f"--top must be at least 1, not {self.top}.")
        if self.probes != 0:
            require_probes(self.probes)
        if not self.threshold >= 0:
            raise OptionError(f"--threshold must not be negative, and is {self.threshold}.")
        if self.fix not in FIXES:
            raise OptionError(f"--fix is one of {', '.join(FIXES)}, not {self.fix!r}.")
        if self.fix != "exact" and self.probes == 0:
            raise OptionError(f"--fix {self.fix} corrects what curvature flags; it needs --probes.")
        if self.budget is not None and not self.budget > 0:
            raise OptionError(f"--budget is a number of forward-equivalents above 0, not {self.budget}.")


def screen(
    model: Model,
    pairs: AnyPairs,
    *,
    sites: AnySites = "heads",
    top: int = 10,
    level: float = 0.95,
    probes: int = 8,
    threshold: float = 0.5,
    fix: Fix = "exact",
    budget: float | None = None,
    metric: str | Metric | None = None,
    direction: Direction | None = None,
    memory: str = DEFAULT_MEMORY,
    seed: int = 0,
    align: Align = "reject",
    chat: bool = False,
    force: bool = False,
    progress: bool = False,
    jobs: Jobs = None,
    run_folder: str | Path | RunFolder | None = None,
    on_baseline: Callable[[Baseline, Metric, str], None] = lambda baseline, metric, why: None,
    **unknown: Never,
) -> ScreenedScores:
    """Find the components of largest absolute mean effect with few exact runs, and give intervals for the others.

    Args:
        sites: see `assay.measure`, as for all options that are not named here.
        top: how many components are wanted.
        level: of the intervals, over the random calibration sample.
        probes: Hessian-vector products for each kind of site; 0 for none.
        threshold: flag a component if curvature surely exceeds this share of its first-order term.
        fix: what flagged components are corrected by, before the exact runs that the top k needs anyway.
        budget: forward-equivalents to stop at, everything included. With a larger one the same call goes on in the
            same run folder.
        seed: of probes and calibration sample.

    Returns:
        Values, intervals, verdicts, cost of every stage; the same for the same arguments on the same machine.

    Raises:
        OptionError: an option out of range, or a budget that does not reach through the estimates.
        AssayError: as `assay.measure`.
    """
    refuse_unknown("screen", unknown, [name for name in signature(screen).parameters if name != "unknown"])
    options = Options(top, level, probes, threshold, fix, budget)
    with prepared(
        EXACT,
        model,
        pairs,
        sites=sites,
        metric=metric,
        direction=direction,
        memory=memory,
        seed=seed,
        align=align,
        chat=chat,
        jobs=jobs,
        run_folder=run_folder,
    ) as run:
        run = replace(run, configuration={**run.configuration, "method": NAME, **vars(options)})
        if (
            run.folder is not None
            and run.folder.is_finished
            and require_finished(run.folder, run.configuration, limit=LIMIT)
        ):
            return ScreenedScores.load(run.folder.path)
        scores = _Workflow(run, options, show=progress, force=force, then=on_baseline).result()
        if run.folder is not None and run.folder is not run_folder:
            scores.save(run.folder)
    return scores


class _Workflow:
    """One screening, stage by stage."""

    def __init__(
        self,
        run: Prepared,
        options: Options,
        *,
        show: bool,
        force: bool,
        then: Callable[[Baseline, Metric, str], None],
    ) -> None:
        self.run, self.options = run, options
        self.components = run.setting.components
        self.kinds = np.array([component.site for component in self.components])
        self.cost = CostMeter()
        self.stages: list[Stage] = []
        self.shards = 0
        self.reserved = 0.0
        before = deepcopy(self.cost)
        self.baseline, measured = run.measure_baseline(self.cost, by_start=True, force=force, then=then)
        self._close("baseline", before)
        self.batches = [batch for batch, _ in measured]
        self.abilities = abilities(run.model, run.setting.metric, run.direction, options.probes)
        self.probes = options.probes if self.abilities.curvature else 0
        self.notes = list(self.abilities.notes)
        self.prices = Prices.of(run.setting, self.batches)
        self.computer = Computer(run, measured, self.cost, by_start=True, show=show)
        if run.folder is not None:
            # What a shard holds is the same whatever may be spent: with more of it, the run is gone on with.
            plan = run.plan(shards="as the search goes")
            run.folder.begin({name: value for name, value in plan.items() if name != LIMIT})

    def result(self) -> ScreenedScores:
        exhausted = self._exhausted()
        known = self._estimate(exhausted)
        left = self._left
        live = np.flatnonzero(known.moves)
        calls: list[tuple[NDArray[np.intp], Stage]] = []

        def exact(members: NDArray[np.intp]) -> NDArray[np.float64]:
            before = deepcopy(self.cost)
            values = self._values(EXACT, live[members], by_component=True)[0]
            calls.append((members, self._stage("", before, len(members))))
            return np.asarray(values)

        outcome = None
        if live.size:
            estimates = known.of(live)
            if self.options.fix != "exact" and self.abilities.curvature:
                estimates = self._correct(known, live, estimates, exhausted)
            outcome = screen_arrays(
                estimates,
                exact,
                top=self.options.top,
                level=self.options.level,
                seed=self.run.setting.seed,
                budget=self._for_exact(left, live),
                costs=self.prices.exact[live],
                exhaust=exhausted,
            )
            self.stages += stages_of(calls, outcome)
        fields = assemble(known, live, outcome, self.options.fix, self.probes)
        metric = self.run.setting.metric
        return ScreenedScores(
            components=tuple(self.components),
            pairs=self.run.pairs,
            method=NAME,
            direction=self.run.direction,
            metric=metric.name,
            unit=metric.unit,
            exact=all(verdict == "verified" for verdict in fields["verdicts"]),
            estimates_effect=True,
            signed=True,
            baseline=self.baseline,
            cost=self.run.spent(self.cost),
            configuration=self.run.configuration,
            provenance=self.run.provenance(SOURCE_NOTE),
            level=self.options.level,
            probes=self.probes if known.estimated.any() else 0,
            threshold=self.options.threshold,
            exhausted=tuple(sorted(exhausted)),
            smooth=self.abilities.smooth,
            stages=tuple(self.stages),
            notes=tuple(self.notes),
            **fields,
        )

    # Stages

    def _exhausted(self) -> set[str]:
        if not self.abilities.gradients:
            if self.options.budget is not None:
                raise OptionError(
                    f"--budget needs estimates to choose by. {self.notes[0]} Leave --budget out, or choose another "
                    "metric or model."
                )
            return set(self.kinds)
        exhausted, note = kinds_to_exhaust(
            self.kinds, self.prices, self.options, self.probes, self.run.layer_tokens, self._left
        )
        if note is not None:
            self.notes.append(note)
        return exhausted

    def _estimate(self, exhausted: set[str]) -> Known:
        """First order at both ends and curvature of every kind that is not exhausted."""
        known = Known.nothing(self.kinds, len(self.run.pairs))
        wanted = [kind for kind in dict.fromkeys(self.kinds.tolist()) if kind not in exhausted]
        ahead = len(wanted) * self.prices.estimates(self.probes) + self.prices.recordings + self.prices.exact.min()
        if self._left < ahead and wanted:
            needed = (self._spent + ahead) / self.run.layer_tokens
            raise OptionError(
                f"--budget {self.options.budget:g} does not reach through the estimates: baseline, attribution "
                f"patching, {self.probes} probes for each kind and one exact run take up to {needed:.1f} "
                "forward-equivalents."
            )
        method = estimates_with(self.probes)
        for kind in wanted:
            before = deepcopy(self.cost)
            members = np.flatnonzero(self.kinds == kind)
            found = self._values(method, members, by_component=False)
            known.first_order[members], known.far_end[members] = found[FIRST_ORDER], found[FAR_END]
            known.quadratic[members] = found[QUADRATIC]
            known.quadratic_stderr[members] = np.sqrt(found[VARIANCE])
            known.moves[members] = found[MOVES].any(1)
            plain = self.baseline.corrupted if self.run.direction == "denoise" else self.baseline.clean
            known.noise = max(known.noise, float(np.sqrt(np.mean((found[BASE][0] - plain) ** 2))))
            probes = f" and {self.probes} curvature probes" if self.probes else ""
            self._close(f"screen: attribution patching{probes}, {kind}", before)
        if self.probes:
            known.flagged = known.estimated & flagged(
                np.nan_to_num(known.first_order),
                np.nan_to_num(known.quadratic),
                np.nan_to_num(known.quadratic_stderr),
                self.options.threshold,
            )
        return known

    def _correct(self, known: Known, live: NDArray[np.intp], estimates: Estimates, exhausted: set[str]) -> Estimates:
        """HVP or MS-HVP for flagged components that look as if they might reach the top k, but will not be patched
        in the pilot. Of a budget, they get what pilot and calibration leave."""
        order = np.argsort(-estimates.size, kind="stable")
        last = estimates.size[order[: self.options.top]].min()
        reach = estimates.size + estimates.scale >= last
        wanted = order[self.options.top :]
        wanted = live[wanted[(reach & known.flagged[live])[wanted]]]
        method = correction_by(self.options.fix)
        segments = SEGMENTS if self.options.fix == "ms-hvp" else 1
        price = np.cumsum(self.prices.hvp[wanted]) * segments + self.prices.recordings
        paid = price <= self._left - self.prices.recordings - self._for_intervals(live, exhausted)
        if not paid.any():
            return estimates
        wanted, self.reserved = wanted[paid], float(price[paid][-1])
        before = deepcopy(self.cost)
        values, refinement, bounds = self._values(method, wanted, by_component=True)
        known.corrected[wanted], known.refinement[wanted] = values, refinement.mean(1)
        if self.abilities.smooth and segments > 1:
            known.bound[wanted] = bounds.mean(1)
        self._close(f"fix: {self.options.fix} for {len(wanted)} flagged components", before)
        return known.of(live)

    def _values(self, method: Method, members: NDArray[np.intp], *, by_component: bool) -> NDArray[np.float64]:
        """(outputs, members, n), in the members' order."""
        shards = make_plan(
            self.run.model,
            self.components,
            self.batches,
            by_component=by_component,
            members=members.tolist(),
            first=self.shards,
        )
        self.shards += len(shards)
        alone = len(shards) <= (len(self.batches) if by_component else 1)
        values = self.computer.values(method, shards, alone=alone)
        ordered: NDArray[np.float64] = values[:, np.argsort(np.argsort(members))]
        return ordered

    # Cost

    @property
    def _spent(self) -> float:
        return self.cost.layer_tokens_forward + 2 * self.cost.layer_tokens_backward

    @property
    def _left(self) -> float:
        """Layer tokens of the budget."""
        budget = self.options.budget
        return np.inf if budget is None else budget * self.run.layer_tokens - self._spent

    def _for_intervals(self, live: NDArray[np.intp], exhausted: set[str]) -> float:
        """The most that pilot and calibration samples of these components may take."""
        total = np.sort(self.prices.exact[live])[::-1][: self.options.top].sum()
        for kind in dict.fromkeys(self.kinds[live].tolist()):
            runs = np.sort(self.prices.exact[live[self.kinds[live] == kind]])[::-1]
            sample = sample_size(len(runs), self.options.level)
            everything = kind in exhausted or exhaustion_is_cheaper(len(runs), sample)
            total += runs[: None if everything else sample].sum()
        return float(total)

    def _for_exact(self, left: float, live: NDArray[np.intp]) -> float | None:
        """Of what was left after the estimates. Corrections count at their price, not at what they took: a run that
        is gone on with may record prompts once more, and must end like one that was never stopped."""
        if self.options.budget is None:
            return None
        return max(left - self.reserved - self.prices.recordings, float(self.prices.exact[live].min()))

    def _stage(self, name: str, before: CostMeter, runs: int = 0) -> Stage:
        spent = self.cost.since(before)
        passes = (spent.layer_tokens_forward + 2 * spent.layer_tokens_backward) / self.run.layer_tokens
        return Stage(name, passes, sum(spent.seconds.values()), runs)

    def _close(self, name: str, before: CostMeter) -> None:
        self.stages.append(self._stage(name, before))
