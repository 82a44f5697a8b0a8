"""Curvature of all components of a kind at once, sampled.

Exactly, g''(0) = delta_c' H delta_c costs a Hessian-vector product for every component. One product along
v = sum_c s_c delta_c, with random signs s_c = +-1, gives all of them an estimate: the mean of s_c delta_c . (H v)_c is
g''(0), since products of two components' signs average out (Hutchinson's estimator, block by block).

Axes: C components, R rows, T positions, U units, D their width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from assay.engine.batches import recording_bytes
from assay.engine.gradients import charge_gradient, read_metric, require_dependence
from assay.engine.graph import graph_bytes, require_precision
from assay.engine.response import Response
from assay.errors import OptionError
from assay.model.recording import as_units
from assay.sites import KINDS, Position

MOST_PROBES = 512


@dataclass(frozen=True)
class SampledCurvature:
    """g'(0), exact, and g''(0), estimated, of C components on R rows; all (C, R)."""

    slope: Tensor
    curvature: Tensor
    standard_error: Tensor
    """Of ``curvature``, from the spread of its probes. Different rows have independent probes, so the errors of a sum
    over rows add in quadrature; those of two components on one row are not independent."""
    probes: Tensor
    """How many each estimate is the mean of."""


def sample_curvature(
    response: Response, probes: int = 8, *, precision: float | None = None, seed: int = 0
) -> SampledCurvature:
    """Slope and sampled curvature at 0 of all components, each kind of site by itself.

    A row's signs follow from the seed, its tokens and the selected components of the kind, so how rows are batched
    changes an estimate by rounding only. Components that overlap, at positions that coincide, are estimated without
    bias like any others.

    Args:
        probes: how many Hessian-vector products for each kind and row; at least 2.
        precision: go on until a row's root mean square standard error is this share of its root mean square curvature.

    Raises:
        OptionError: fewer than 2 probes, a precision that is not positive or that `MOST_PROBES` do not reach, a metric
            without gradient, or weights in half precision.
    """
    response.require_differentiable()
    require_precision(response.model)
    require_probes(probes, precision)
    most = _rows_at_once(response)
    if most < response.batch.rows:
        firsts = range(0, response.batch.rows, most)
        parts = [_sample(response.part(slice(i, i + most)), probes, precision, seed) for i in firsts]
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return SampledCurvature(*(torch.cat(column, dim=1) for column in columns))
    return _sample(response, probes, precision, seed)


def _sample(response: Response, probes: int, precision: float | None, seed: int) -> SampledCurvature:
    shape = (len(response.components), response.batch.rows)
    slope = torch.zeros(shape, dtype=torch.float64, device=response.model.device)
    sums = _Sums(shape, response.model.device)
    by_site: defaultdict[str, list[tuple[int, Tensor, list[int]]]] = defaultdict(list)
    for site, layer, delta, numbers in response.deltas():
        by_site[site].append((layer, delta, numbers))
    for site, layers in by_site.items():
        mine = torch.tensor([number for *_, of_layer in layers for number in of_layer], device=slope.device)
        kind = _Kind(response, site, layers)
        slope += kind.slopes()
        done = 0
        while (short := sums.short_of(mine, probes, precision)).any():
            if done >= MOST_PROBES:
                reached = sums.relative_error(mine).max().item()
                raise OptionError(
                    f"{done} probes estimate the curvature of {site} to a relative error of {reached:.2g} at "
                    f"worst, not {precision}. Ask for less precision, or take exact curvature (hvp)."
                )
            found = kind.probe(done, seed)
            sums.add(mine, short.nonzero().flatten(), found[mine][:, short])
            done += 1
        response.advance(len(mine) * response.batch.rows)
    mean, error = sums.mean_and_error()
    return SampledCurvature(slope, mean, error, sums.count)


def require_probes(probes: int, precision: float | None = None) -> None:
    """Refuse what gives no standard error."""
    if not 2 <= probes <= MOST_PROBES:
        raise OptionError(f"The number of probes must be 2 to {MOST_PROBES}, not {probes}: one has no spread.")
    if precision is not None and not precision > 0:
        raise OptionError(f"The precision is a relative error above 0, such as 0.1, not {precision}.")


class _Sums:
    """Running sums of the probes' estimates and squares, row by row."""

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self.total = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros_like(self.total)
        self.count = torch.zeros(shape, dtype=torch.long, device=device)

    def add(self, numbers: Tensor, rows: Tensor, found: Tensor) -> None:
        index = numbers.unsqueeze(1), rows
        self.total[index] += found
        self.squares[index] += found.square()
        self.count[index] += 1

    def mean_and_error(self) -> tuple[Tensor, Tensor]:
        count = self.count.clamp(min=2)
        mean = self.total / count
        variance = ((self.squares - count * mean.square()) / (count - 1)).clamp(min=0)
        return mean, (variance / count).sqrt()

    def relative_error(self, numbers: Tensor) -> Tensor:
        """(R,) root mean square standard error over root mean square curvature."""
        mean, error = (values[numbers].square().sum(0) for values in self.mean_and_error())
        return (error / mean).sqrt().nan_to_num(0.0)

    def short_of(self, numbers: Tensor, probes: int, precision: float | None) -> Tensor:
        """(R,) bool: which rows need another probe. A row that is done takes no part in later ones."""
        short = self.count[numbers[0]] < probes
        if precision is not None:
            short = short | (self.relative_error(numbers) > precision)
        return short


class _Kind:
    """The graph of the gradient with respect to one kind of site."""

    def __init__(self, response: Response, site: str, layers: list[tuple[int, Tensor, list[int]]]) -> None:
        self.response, self.site, self.batch = response, site, response.batch
        model, batch = response.model, response.batch
        recording, self.start = response.record_graph()
        self.parts = [
            _Part(response, self.start, delta[:, self.start :].double(), numbers) for _, delta, numbers in layers
        ]
        places = [recording.graph_tensor(site, layer) for layer, *_ in layers]
        self.tensors = [tensor for tensor, _ in places]
        self.factors = [factor for _, factor in places]
        with model.frozen(), torch.enable_grad():
            values = read_metric(model, recording.residuals[-1], batch, response.metric, start=self.start)
            for (layer, *_), tensor in zip(layers, self.tensors, strict=True):
                require_dependence(site, layer, found=tensor.requires_grad)
            self.gradients = torch.autograd.grad(values.sum(), self.tensors, create_graph=True, allow_unused=True)
        for (layer, *_), gradient in zip(layers, self.gradients, strict=True):
            require_dependence(site, layer, found=gradient is not None)
        charge_gradient(model, response.cost, *self._work[:2])

    @property
    def _work(self) -> tuple[int, int, int]:
        """Rows, positions and layers of one pass."""
        return self.batch.rows, self.batch.positions - self.start, self.response.model.n_layers

    def slopes(self) -> Tensor:
        """(C, rows) exact; 0 for components of other kinds, as everywhere here."""
        return self._products(self.gradients)

    def probe(self, number: int, seed: int) -> Tensor:
        """(C, rows) one estimate of every component's curvature."""
        signs = self._signs(number, seed)
        along = torch.zeros((), dtype=torch.float64, device=signs.device)
        with self.response.model.frozen(), torch.enable_grad():
            for part, gradient, factor in zip(self.parts, self.gradients, self.factors, strict=True):
                if gradient.requires_grad:
                    v = part.direction(signs) * factor
                    along = along + (as_units(self.site, gradient) * v.to(gradient)).sum().to(along.device)
            if not along.requires_grad:
                return torch.zeros_like(signs)  # a straight line in every component
            products = torch.autograd.grad(along, self.tensors, retain_graph=True, allow_unused=True)
        # Tangents go up through the layers, and gradients back down.
        self.response.cost.forward(*self._work)
        charge_gradient(self.response.model, self.response.cost, *self._work[:2])
        return self._products(products) * signs

    def _signs(self, number: int, seed: int) -> Tensor:
        """(C, rows) of +-1, by the seed, the rows' tokens, and which of the examples with the same tokens it is.

        The row of a wrong answer may have the tokens of the right one's, and must not have its signs: the errors of an
        example's rows add in quadrature.
        """
        mine = [number for part in self.parts for number in part.numbers]
        signs = np.zeros((len(self.response.components), self.batch.rows))
        kind = list(KINDS).index(self.site)
        tokens = torch.cat([self.batch.base, self.batch.source], dim=1).tolist()
        wrong = (self.batch.targets.sign < 0).long().tolist()
        told_apart = [[2, copy] if copy else [] for copy in self.batch.copies.tolist()]
        for row in range(self.batch.rows):
            generator = np.random.default_rng([seed, kind, number, *tokens[row], *[1] * wrong[row], *told_apart[row]])
            signs[mine, row] = generator.integers(0, 2, len(mine)) * 2 - 1
        return torch.from_numpy(signs).to(self.response.model.device)

    def _products(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """(C, rows) of each component's delta with these gradients."""
        shape = (len(self.response.components), self.batch.rows)
        products = torch.zeros(shape, dtype=torch.float64, device=self.response.model.device)
        for part, gradient, factor in zip(self.parts, gradients, self.factors, strict=True):
            if gradient is not None:  # else nothing that was probed bends along these
                there = gradient.detach().to(products.device)
                part.add_products(as_units(self.site, there) * factor, products)
        return products


class _Part:
    """The components of one kind in one layer, and their deltas (R, t, U, D) from a position on."""

    def __init__(self, response: Response, start: int, delta: Tensor, numbers: list[int]) -> None:
        self.delta, self.numbers = delta, numbers
        at: defaultdict[Position, list[int]] = defaultdict(list)
        for number in numbers:
            at[response.components[number].position].append(number)
        # Components at one position are different units, so each group is one indexed operation.
        self.groups = []
        for position, group in at.items():
            mask = response.batch.mask(position)
            units = [response.components[number].unit or 0 for number in group]
            self.groups.append((group, units, None if mask is None else mask[:, start:]))

    def direction(self, signs: Tensor) -> Tensor:
        """(R, t, U, D) sum of the components' deltas, each with its sign (C, R)."""
        weights = torch.zeros(self.delta.shape[:3], dtype=self.delta.dtype, device=self.delta.device)
        for numbers, units, mask in self.groups:
            weight = signs[numbers].T.unsqueeze(1)
            weights[:, :, units] += weight if mask is None else weight * mask.unsqueeze(2)
        return self.delta * weights.unsqueeze(3)

    def add_products(self, gradient: Tensor, products: Tensor) -> None:
        """Add each component's delta . gradient to (C, R)."""
        per_position = (gradient.double() * self.delta).sum(3)
        for numbers, units, mask in self.groups:
            masked = per_position[:, :, units] if mask is None else per_position[:, :, units] * mask.unsqueeze(2)
            products[numbers] += masked.sum(1).T


def _rows_at_once(response: Response) -> int:
    """Rows whose second-order graphs fit in memory together."""
    model, positions = response.model, response.batch.positions
    graph = model.n_layers * graph_bytes(model, positions - response.start, positions, order=2)
    return max(1, response.memory // (recording_bytes(model, positions) + graph))
