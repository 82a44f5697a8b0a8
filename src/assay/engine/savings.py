"""What replay and gradients leave out because it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Savings:
    """Each can be switched off, to test that nothing is lost."""

    layers: bool = True
    """Layers before the patched one."""
    positions: bool = True
    """Positions before the first difference."""
    zeros: bool = True
    """Components whose source equals their base."""
    last_layer: bool = True
    """The last layer where the metric does not look."""
    unembedding: bool = True
    """Rows of the unembedding that the metric does not read."""


EVERY_SAVING = Savings()
NO_SAVING = Savings(**{field.name: False for field in fields(Savings)})
