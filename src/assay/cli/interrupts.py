"""Ctrl-C, wherever it strikes.

Libraries that are just being imported may catch the KeyboardInterrupt and raise something else of what it left behind.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

heard: list[int] = []
"""The interrupts of this process, so that an error after one is not taken for a fault."""


def listen() -> None:
    """Remember interrupts from now on; they are raised as before."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _hear)


def _hear(number: int, frame: FrameType | None) -> None:
    heard.append(number)
    signal.default_int_handler(number, frame)
