"""What is wrong with several rows, said at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from assay.errors import DataError

COMPLAINTS_SHOWN = 4
Item = TypeVar("Item")
Made = TypeVar("Made")


def of_each(make: Callable[[Item], Made], items: Sequence[Item], what: str) -> list[Made]:
    """``make`` of each item.

    Args:
        what: the items are, in an error: ``pairs``.

    Raises:
        DataError: the complaint of the one item that has any; of several items, the first few and how many there are.
    """
    made: list[Made] = []
    complaints: list[DataError] = []
    for item in items:
        try:
            made.append(make(item))
        except DataError as error:
            complaints.append(error)
    if len(complaints) == 1:
        raise complaints[0]
    if complaints:
        shown = "\n".join(map(str, complaints[:COMPLAINTS_SHOWN]))
        rest = len(complaints) - COMPLAINTS_SHOWN
        more = f"\n... and {rest} more" if rest > 0 else ""
        raise DataError(f"{len(complaints)} of {len(items)} {what} cannot be used.\n{shown}{more}")
    return made
