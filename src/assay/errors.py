"""What assay raises when it cannot give a number that it would stand behind.

Every message says what is wrong, where, and what to do. The command line prints it and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


class AssayError(Exception):
    """Base of every error that a user can cause and mend."""


class ModelError(AssayError):
    """The model cannot be loaded, is of an unsupported kind, or fails a check."""


class DataError(AssayError):
    """Prompts, answers or a task that cannot be used as they are."""


class OptionError(AssayError):
    """An option that does not exist or does not fit the others."""


class StoreError(AssayError):
    """A run folder that cannot be read or written."""


class InterventionError(AssayError):
    """An intervention that did not fire, or a replay that does not reproduce the model."""


class MemoryExhausted(AssayError):  # noqa: N818
    """Not even the smallest piece of work fits into memory."""


class WorkerError(AssayError):
    """A worker process that died more than once over the same piece of work."""


def instead_of(name: str, known: Collection[str]) -> str:
    """What to choose instead of an unknown name: the most similar known one, and all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"{f'Did you mean {close[0]!r}? ' if close else ''}Choose one of {', '.join(known)}."


def refuse_unknown(what: str, given: Collection[str], known: Collection[str], note: str = "") -> None:
    """Refuse keyword arguments that a public function does not take.

    Args:
        what: the function or method.
        note: where the argument belongs, if that is known; a clause.

    Raises:
        OptionError: there is one.
    """
    for name in given:
        if name not in known:
            raise OptionError(f"{what} takes no option {name!r}{note}. {instead_of(name, known)}")


def require_seed(seed: object) -> None:
    """Refuse what no random draw can be seeded with.

    Raises:
        OptionError: not a whole number from 0 on.
    """
    if type(seed) is not int or seed < 0:
        raise OptionError(f"The seed must be a whole number from 0 on, not {seed!r:.80}.")
