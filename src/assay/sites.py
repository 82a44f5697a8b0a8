"""Where one can intervene: components of a model, selected by kind of site."""

from __future__ import annotations

from dataclasses import dataclass

from assay.errors import OptionError
from assay.model import Model

SITES: dict[str, str] = {
    "heads": "output of each attention head before W_O, all positions at once",
    "mlps": "what each MLP adds to the residual stream (after a post-norm), all positions at once",
}


@dataclass(frozen=True, order=True)
class Component:
    """One thing to intervene on. Layers and units count from 0; an MLP has no unit."""

    layer: int
    site: str
    unit: int | None = None

    @property
    def name(self) -> str:
        """Short name: ``L3H5``, ``L3 MLP``."""
        return f"L{self.layer}H{self.unit}" if self.site == "heads" else f"L{self.layer} MLP"


def select(model: Model, sites: str) -> list[Component]:
    """The components of a comma-separated list of site kinds, kind by kind, layer by layer.

    Raises:
        OptionError: an unknown or repeated kind, or none.
    """
    kinds = [kind.strip() for kind in sites.split(",") if kind.strip()]
    require_sites(kinds)
    components = []
    for kind in kinds:
        units = range(model.n_heads) if kind == "heads" else (None,)
        components += [Component(layer, kind, unit) for layer in range(model.n_layers) for unit in units]
    return components


def require_sites(kinds: list[str]) -> None:
    """Raise unless every kind exists and is named once."""
    for kind in kinds:
        if kind not in SITES:
            raise OptionError(f"There is no site {kind!r}. Choose from {', '.join(SITES)} (comma-separated).")
    if not kinds or len(set(kinds)) != len(kinds):
        raise OptionError(f"--sites names each kind of site once, for example {','.join(SITES)}.")
