"""Where one can intervene, and sentences that select components.

``heads(model).layers(8, 24).at("last")`` in Python reads as ``--sites "heads[8:24]@last"`` does on the
command line.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

from assay.errors import ModelError, OptionError, instead_of
from assay.model import Model

__all__ = [
    "KINDS", "POSITIONS", "AnySites", "Component", "Selection", "attention", "component_named",
    "components_of", "describe", "embeddings",
    "heads", "keys", "mlps", "neurons", "parse", "queries", "require_kind", "residual", "select", "values",
]  # fmt: skip

MOST_NAMES = 400

Position = int | str | None
"""All positions at once (None), an index (negative: from the end of the prompt), or a word of `POSITIONS`."""

POSITIONS: dict[str, str] = {
    "last": "the prompt's last token, where the first answer token is read",
    "answer": "every position at which an answer token is read",
    "first-difference": "the first token that differs between clean and corrupted",
    "each": "every position by itself (prompts of equal length)",
}


@dataclass(frozen=True)
class Kind:
    """A kind of site: what it is, and how many units a layer has of it (None: the whole is one)."""

    name: str
    description: str
    units: Callable[[Model], int] | None = None
    letter: str = ""
    """Of a unit in short names."""
    once: bool = False
    """Only before the first layer."""
    in_half_layer: bool = False
    """Exists only where the MLP follows attention."""
    of_mlp: bool = False
    """Needs layers without experts."""

    @property
    def unit_name(self) -> str:
        return {"H": "head", "N": "neuron", "KV": "key-value head"}.get(self.letter, "")


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("heads", "output of each attention head before W_O", lambda model: model.n_heads, "H"),
        Kind("mlps", "what each MLP adds to the residual stream (after a post-norm)"),
        Kind("attention", "what each attention layer adds to the residual stream (after a post-norm)"),
        Kind("neurons", "each MLP neuron after activation and gate", lambda model: model.d_mlp, "N", of_mlp=True),
        Kind("neurons-pre", "each MLP neuron before its activation", lambda model: model.d_mlp, "N", of_mlp=True),
        Kind("residual-pre", "residual stream before each layer"),
        Kind("residual-mid", "residual stream between attention and MLP", in_half_layer=True),
        Kind("residual-post", "residual stream after each layer"),
        Kind("q", "each head's queries, as attention receives them", lambda model: model.n_heads, "H"),
        Kind("k", "each key-value head's keys, as attention receives them", lambda model: model.n_kv_heads, "KV"),
        Kind("v", "each key-value head's values", lambda model: model.n_kv_heads, "KV"),
        Kind("embeddings", "token embeddings", once=True),
    )
}


@dataclass(frozen=True)
class Component:
    """One thing to intervene on. Layers and units count from 0; what has no units has ``unit`` None."""

    layer: int
    site: str
    unit: int | None = None
    position: Position = None

    @property
    def entry(self) -> int:
        """The first layer whose computation a patch changes (the number of layers: only the unembedding)."""
        return self.layer + 1 if self.site == "residual-post" else self.layer

    @property
    def name(self) -> str:
        """Short name: ``L3H5``, ``L3 MLP``, ``L3N120 pre``, ``L3 residual-pre@last``."""
        kind = KINDS[self.site]
        if kind.once:
            name = self.site
        elif self.unit is None:
            name = f"L{self.layer} {'MLP' if self.site == 'mlps' else self.site}"
        else:
            suffix = {"heads": "", "neurons": "", "neurons-pre": " pre"}.get(self.site, f" {self.site}")
            name = f"L{self.layer}{kind.letter}{self.unit}{suffix}"
        return name if self.position is None else f"{name}@{self.position}"


class Selection(Sequence[Component]):
    """Components of one model, narrowed by `layers`, `units` and `at`, joined by ``+``."""

    def __init__(self, components: Sequence[Component]) -> None:
        self.components = tuple(components)

    def layers(self, first: int, end: int | None = None) -> Selection:
        """Only layers ``first`` to ``end - 1`` (only ``first``, without an end).

        Raises:
            OptionError: nothing is left.
        """
        if end is not None and end <= first:
            raise OptionError(_backwards(first, end))
        wanted = range(first, first + 1 if end is None else end)
        beyond = set(wanted) - {component.layer for component in self.components}
        if beyond and len(beyond) < len(wanted):
            raise OptionError(f"There is no layer {min(beyond)} of {self.components[0].site} to select.")
        return self._only(lambda c: c.layer in wanted, f"layers {wanted.start} to {wanted.stop - 1}")

    def units(self, *units: int) -> Selection:
        """Only these heads or neurons of each layer.

        Raises:
            OptionError: nothing is left.
        """
        return self._only(lambda c: c.unit in units, f"units {', '.join(map(str, units))}")

    def at(self, position: Position) -> Selection:
        """At one position of each prompt instead of all positions at once; see `POSITIONS`.

        Raises:
            OptionError: an unknown word.
        """
        position = require_position(position)
        return Selection([replace(component, position=position) for component in self.components])

    def _only(self, keep: Callable[[Component], bool], what: str) -> Selection:
        left = [component for component in self.components if keep(component)]
        if not left:
            raise OptionError(f"No {self.components[0].site} of {what} exist in this model.")
        return Selection(left)

    def __add__(self, other: Selection) -> Selection:
        return Selection(self.components + other.components)

    @overload
    def __getitem__(self, index: int) -> Component: ...
    @overload
    def __getitem__(self, index: slice) -> Selection: ...
    def __getitem__(self, index: int | slice) -> Component | Selection:
        return Selection(self.components[index]) if isinstance(index, slice) else self.components[index]

    def __len__(self) -> int:
        return len(self.components)

    def __iter__(self) -> Iterator[Component]:
        return iter(self.components)

    def __repr__(self) -> str:
        shown = ", ".join(component.name for component in self.components[:4])
        return f"Selection({len(self)} components: {shown}{', ...' if len(self) > 4 else ''})"


AnySites = str | Selection | Sequence[str]
"""A phrase, its parts, or components."""


def components_of(model: Model, name: str) -> Selection:
    """All components of one kind, layer by layer.

    Raises:
        OptionError: an unknown kind.
        ModelError: this model has none of it.
    """
    kind = require_kind(name)
    if kind.in_half_layer and model.is_parallel:
        raise ModelError(f"{model.name} runs MLP and attention in parallel: there is no {name}.")
    if kind.of_mlp and any(layer.neuron_output is None for layer in model.layers):
        raise ModelError(f"{model.name} has layers of experts; the site {name} is not supported there.")
    units: Sequence[int | None] = [None] if kind.units is None else range(kind.units(model))
    layers = range(1 if kind.once else model.n_layers)
    return Selection([Component(layer, name, unit) for layer in layers for unit in units])


def component_named(model: Model, name: str) -> Component:
    """The component of a short name, such as ``L3H5``, ``L3 MLP`` or ``L0N17 pre@last``.

    Raises:
        OptionError: there is none of this name.
    """
    base, _, where = name.partition("@")
    position = require_position(int(where) if re.fullmatch(r"-?\d+", where) else where or None)
    for kind in KINDS:
        try:
            candidates = components_of(model, kind)
        except ModelError:
            continue
        for component in candidates:
            if component.name == base:
                return replace(component, position=position)
    raise OptionError(
        f"{model.name} has no component {name!r}. Names are those of the tables: L3H5 (head), L3 MLP, L3N17 (neuron), "
        "L3H5 q, L3 residual-pre@last."
    )


def heads(model: Model) -> Selection:
    """Every attention head."""
    return components_of(model, "heads")


def mlps(model: Model) -> Selection:
    """Every MLP."""
    return components_of(model, "mlps")


def attention(model: Model) -> Selection:
    """Every attention layer as a whole."""
    return components_of(model, "attention")


def neurons(model: Model, *, before_activation: bool = False) -> Selection:
    """Every MLP neuron, after (default) or before its activation."""
    return components_of(model, "neurons-pre" if before_activation else "neurons")


def residual(model: Model, where: str = "pre") -> Selection:
    """The residual stream ``pre`` (before each layer), ``mid`` (before its MLP) or ``post`` (after it)."""
    return components_of(model, f"residual-{where}")


def queries(model: Model) -> Selection:
    """Every head's queries."""
    return components_of(model, "q")


def keys(model: Model) -> Selection:
    """Every key-value head's keys."""
    return components_of(model, "k")


def values(model: Model) -> Selection:
    """Every key-value head's values."""
    return components_of(model, "v")


def embeddings(model: Model) -> Selection:
    """The token embeddings."""
    return components_of(model, "embeddings")


_TERM = re.compile(r"(?P<kind>[a-zA-Z_-]+)(?:\[(?P<first>\d*)(?P<range>:)?(?P<end>\d*)\])?(?:@(?P<position>[\w-]+))?")


def select(model: Model, sites: str | Selection) -> Selection:
    """The components that a phrase such as ``heads[8:24]@last,mlps`` names; a selection stays as it is.

    Raises:
        OptionError: the phrase does not parse, repeats a component, or names what does not exist.
        ModelError: this model has none of a kind.
    """
    if isinstance(sites, Selection):
        chosen = sites
    else:
        chosen = Selection(())
        for kind, first, end, position in parse(sites):
            part = components_of(model, kind)
            if (first, end) != (0, None):
                part = part.layers(first, model.n_layers if end is None else end)
            chosen = chosen + (part if position is None else part.at(position))
    if len(set(chosen)) != len(chosen) or not chosen:
        raise OptionError(f"--sites {sites!r} names {'a component twice' if chosen else 'nothing'}.")
    return chosen


def parse(sites: str) -> list[tuple[str, int, int | None, Position]]:
    """Kind, first layer, end layer (None: the last) and position of each term.

    Raises:
        OptionError: see `select`.
    """
    terms: list[tuple[str, int, int | None, Position]] = []
    for text in filter(None, (term.strip() for term in sites.split(","))):
        match = _TERM.fullmatch(text)
        if match is None:
            raise OptionError(f"--sites cannot read {text!r}. Write a kind, such as heads, heads[8:24] or heads@last.")
        kind = require_kind(match["kind"]).name
        first = int(match["first"] or 0)
        end = int(match["end"]) if match["end"] else None
        if match["first"] and not match["range"]:
            end = first + 1
        word = match["position"]
        position: Position = int(word) if word is not None and re.fullmatch(r"-?\d+", word) else word
        if end is not None and end <= first:
            raise OptionError(
                f"{text!r}: {_backwards(first, end)} Write {kind}[{min(first, end)}:{max(first, end) + 1}]."
            )
        terms.append((kind, first, end, require_position(position)))
    if not terms or len(set(terms)) != len(terms):
        raise OptionError("--sites names each kind of site once, for example heads,mlps.")
    return terms


def _backwards(first: int, end: int) -> str:
    return f"The start, {first}, is {'after' if end < first else 'at'} the end, {end}, which is not included."


def require_position(position: Position) -> Position:
    """The position, if it is an index or a known word.

    Raises:
        OptionError: it is not.
    """
    if position is None or position in POSITIONS:
        return position
    try:
        if isinstance(position, bool):
            raise TypeError
        return operator.index(position)  # type: ignore[arg-type]  # numpy's integers too
    except TypeError:
        raise OptionError(
            f"There is no position {position!r}. {instead_of(str(position), POSITIONS)} Or give an index, such as -1."
        ) from None


def describe(sites: str | Sequence[str] | Selection) -> str:
    """A selection in words that tell it from any other: a phrase as it is, components by name, many by their hash."""
    if isinstance(sites, str):
        return sites
    names = ",".join(site if isinstance(site, str) else site.name for site in sites)
    if len(sites) <= MOST_NAMES:
        return names
    return f"{len(sites)} components, sha256 {hashlib.sha256(names.encode()).hexdigest()}"


def require_kind(name: str) -> Kind:
    """The kind of this name.

    Raises:
        OptionError: there is none.
    """
    if name not in KINDS:
        raise OptionError(f"There is no site {name!r}. {instead_of(name, KINDS)}")
    return KINDS[name]
