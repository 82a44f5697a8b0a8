"""Keep transformers' bars and advice out of our output; its errors still come through."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import huggingface_hub
import transformers


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No loading bars and no warnings of transformers inside; the user's settings come back."""
    verbosity = transformers.logging.get_verbosity()
    hub = huggingface_hub.utils.logging.get_verbosity()
    bars = transformers.utils.logging.is_progress_bar_enabled()
    try:
        transformers.logging.set_verbosity(logging.ERROR)
        huggingface_hub.utils.logging.set_verbosity(logging.ERROR)
        transformers.utils.logging.disable_progress_bar()
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        huggingface_hub.utils.logging.set_verbosity(hub)
        if bars:
            transformers.utils.logging.enable_progress_bar()
