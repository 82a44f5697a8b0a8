"""A layer whose heads read inputs of their own: the q, k and v of every head from a residual stream each.

The layer's own code makes the norm, rotates and attends; only the projections between are done head by head. With
grouped queries a key-value head reads one stream; *ungrouped*, every query head has keys and values of its own, which
the layer's own code makes in G passes, the g-th for the g-th query head of every group.

Axes: U readers of one layer (queries of each head, then keys, then values), N lanes, t positions from ``start`` on,
M d_model, H query heads, K key-value heads, G = H / K, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from assay.engine.contributions import linear_map
from assay.errors import InterventionError
from assay.model import Model
from assay.model.attention import tapped
from assay.model.recording import Recording, removed


def count_readers(model: Model, *, ungrouped: bool) -> int:
    """Of one layer's attention."""
    return model.n_heads + 2 * (model.n_heads if ungrouped else model.n_kv_heads)


class Readers:
    """The readers of one layer.

    Args:
        base: recording whose layer arguments, and keys and values before ``start``, serve every lane.
        start: the first position that is run.
        ungrouped: keys and values for every query head.
    """

    def __init__(self, model: Model, layer: int, base: Recording, start: int, *, ungrouped: bool = False) -> None:
        self.model, self.layer, self.base, self.start = model, layer, base, start
        self.groups = model.n_heads // model.n_kv_heads if ungrouped else 1
        self.kv_units = model.n_kv_heads * self.groups
        self.count = count_readers(model, ungrouped=ungrouped)
        attention = model.layers[layer].attention
        self.modules = [attention.get_submodule(path) for path in model.family.projections]
        self._weights, self._biases = self._by_head()

    def _by_head(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Of queries, keys and values: weights (units, D, M) and biases (units, D)."""
        model = self.model
        units = [model.n_heads, model.n_kv_heads, model.n_kv_heads]
        found = [linear_map(module, model.d_model, self.base.residuals[0]) for module in self.modules]
        if len(found) == 3:
            weights = [weight.T.reshape(n, -1, model.d_model) for n, (weight, _) in zip(units, found, strict=True)]
            biases = [None if b is None else b.reshape(n, -1) for n, (_, b) in zip(units, found, strict=True)]
            return weights, biases
        ((weight, bias),) = found
        rows = weight.T.reshape(-1, model.d_head, model.d_model)  # a head's q, k or v each
        if model.family.projection_is_by_head:
            of_kind = [slice(which, None, 3) for which in range(3)]
        else:
            q, kv = units[:2]
            of_kind = [slice(0, q), slice(q, q + kv), slice(q + kv, None)]
        of_bias = None if bias is None else bias.reshape(-1, model.d_head)
        return [rows[kind] for kind in of_kind], [None if of_bias is None else of_bias[kind] for kind in of_kind]

    def normed(self, inputs_LtM: Tensor, rows: Tensor) -> Tensor:
        """What the projections read when the layer gets these streams: its own norm, if it has one.

        Args:
            rows: (L,) the recording's row of each.
        """

        def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(args[0] if args else kwargs["hidden_states"])

        with removed(self.modules[0].register_forward_pre_hook(stop, with_kwargs=True, prepend=True)):
            (found,) = self.until_reached(inputs_LtM, rows)
        return found

    def project(self, normed: Tensor, kind: str, unit: int) -> Tensor:
        """(N, t, D) of one reader; ``normed`` is (N, t, M). Keys and values count as in `project_all`."""
        which = "qkv".index(kind)
        at = unit if kind == "q" else unit // self.groups
        bias = self._biases[which]
        return nn.functional.linear(normed, self._weights[which][at], None if bias is None else bias[at])

    def project_all(self, normed_UNtM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (N, t, H, D), keys and values (N, t, K G, D) as the projections give them."""
        sizes = [self.model.n_heads, self.kv_units, self.kv_units]
        q, k, v = (self._project(part, which) for which, part in enumerate(torch.split(normed_UNtM, sizes)))
        return q, k, v

    def _project(self, normed_UNtM: Tensor, which: int) -> Tensor:
        weight, bias = self._weights[which], self._biases[which]
        units, lanes, positions, _ = normed_UNtM.shape
        if which and self.groups > 1:
            weight = weight.repeat_interleave(self.groups, 0)
            bias = None if bias is None else bias.repeat_interleave(self.groups, 0)
        flat = torch.bmm(normed_UNtM.reshape(units, lanes * positions, -1), weight.transpose(1, 2))
        if bias is not None:
            flat = flat + bias.unsqueeze(1)
        return flat.view(units, lanes, positions, -1).permute(1, 2, 0, 3)

    def read(self, inputs_UNtM: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the projections give when each reader gets a stream of its own; as `project_all`."""
        readers, lanes = inputs_UNtM.shape[:2]
        normed = self.normed(inputs_UNtM.flatten(0, 1).contiguous(), rows.repeat(readers))
        return self.project_all(normed.view(readers, lanes, *normed.shape[1:]))

    @contextmanager
    def projecting(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[None]:
        """The projections give these, (N, t, units, D) each, whatever they read."""
        if len(self.modules) == 3:
            outputs = [part.flatten(2) for part in (q, k, v)]
        elif self.model.family.projection_is_by_head:
            outputs = [torch.stack([q, k, v], dim=3).flatten(2)]
        else:
            outputs = [torch.cat([part.flatten(2) for part in (q, k, v)], dim=2)]
        with ExitStack() as hooks:
            for module, output in zip(self.modules, outputs, strict=True):
                hook = _giving(output)
                hooks.enter_context(removed(module.register_forward_hook(hook)))
            yield

    def attended(
        self, tap: ReadersTap, q: Tensor, k: Tensor, v: Tensor, hidden_NtM: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the attention function gets, (N, units, t, D) each, where the projections give these.

        Args:
            hidden_NtM: any streams of these lanes; nothing is read of them but their shape.
        """
        lanes, positions, groups = len(rows), q.shape[1], self.groups
        passes = [
            part.view(lanes, positions, self.model.n_kv_heads, groups, -1).permute(3, 0, 1, 2, 4).flatten(0, 1)
            for part in (k, v)
        ]
        repeated = hidden_NtM.repeat(groups, 1, 1)
        with tap.until_attention(), self.projecting(q.repeat(groups, 1, 1, 1), passes[0], passes[1]):
            q, k, v = self.until_reached(repeated, rows.repeat(groups))
        k, v = (  # query head j G + g has what its key-value head j was given in pass g
            part.reshape(groups, lanes, *part.shape[1:]).permute(1, 2, 0, 3, 4).flatten(1, 2) for part in (k, v)
        )
        return q[:lanes], k, v

    def until_reached(self, hidden: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """What the layer reaches when its tap or a hook ends it early."""
        try:
            self.run(hidden, rows)
        except _Reached as reached:
            return reached.found
        raise InterventionError(f"Layer {self.layer} ran to its end without its projections or its attention.")

    def run(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """The layer's own code on (N, t, M)."""
        args, kwargs = self.base.arguments[self.layer].select(rows, self.start)
        output = self.model.layers[self.layer].module(hidden, *args, **kwargs)
        return cast(Tensor, output[0] if isinstance(output, tuple) else output)

    def whole(self, rows: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (N, units, S, D) of all positions; those before ``start`` come from the recording."""
        if self.start == 0:
            return k, v
        joined = []
        for kept, part in ((self.base.k, k), (self.base.v, v)):
            before = kept[self.layer][:, : self.start][rows].transpose(1, 2)
            joined.append(torch.cat([before.repeat_interleave(part.shape[1] // before.shape[1], 1), part], dim=2))
        return joined[0], joined[1]


def _giving(output: Tensor) -> Callable[..., Tensor]:
    return lambda *_: output.clone()  # some layers clip it in place


class _Reached(Exception):  # noqa: N818
    """Ends a layer early: what was wanted has been seen."""

    def __init__(self, *found: Tensor) -> None:
        self.found = found


class ReadersTap:
    """Attention as `Readers` need it: earlier keys and values from the recording, and a look at what passes.

    Args:
        rows: (N,) the recording's row of each lane.
    """

    def __init__(self, readers: Sequence[Readers], rows: Tensor) -> None:
        self.readers, self.rows = readers, rows
        self.given: tuple[Tensor, Tensor, Tensor] | None = None
        """What attention gets in the place of what comes to it."""
        self.reaching = False
        self.seen: tuple[Tensor, Tensor, Tensor] | None = None
        self.heads: Tensor | None = None

    def attention_inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.reaching:
            raise _Reached(q, k, v)
        if self.given is not None:
            q, k, v = self.given
        self.seen = q, k, v
        return q, *self.readers[layer].whole(self.rows, k, v)

    def head_outputs(self, layer: int, z_NtHD: Tensor) -> Tensor:
        self.heads = z_NtHD
        return z_NtHD

    @contextmanager
    def until_attention(self) -> Iterator[None]:
        self.reaching = True
        try:
            yield
        finally:
            self.reaching = False


@contextmanager
def reading(model: Model, readers: Sequence[Readers], rows: Tensor, *, gradients: bool = False) -> Iterator[ReadersTap]:
    """Layers run through assay's attention, with their weights frozen."""
    tap = ReadersTap(readers, rows)
    with tapped(model.hf, tap), model.frozen(), torch.set_grad_enabled(gradients):
        yield tap
