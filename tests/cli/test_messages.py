"""What the command line says to a user who mistook something."""

from __future__ import annotations

import pytest

import assay
from assay.data.encoding import require_align
from assay.data.metrics import metric_named
from assay.data.tasks import require_task
from assay.errors import AssayError, ModelError, OptionError
from assay.methods.registry import method_named
from assay.methods.requirements import require_direction
from assay.sites import parse, require_position


@pytest.mark.parametrize(
    ("name", "nearest", "ask"),
    [
        ("logit_diff", "logit-diff", metric_named),
        ("iio", "ioi", require_task),
        ("atribution-patching", "attribution-patching", method_named),
        ("residual_pre", "residual-pre", parse),
        ("lasst", "last", require_position),
        ("last_k", "last-k", require_align),
        ("denoising", "denoise", lambda name: require_direction(method_named("random"), name)),
        ("smollm2-135", "smollm2-135m", assay.load),
        ("float23", "float32", lambda name: assay.load("sequence-sort", dtype=name)),
    ],
)
def test_the_nearest_name_is_suggested(name: str, nearest: str, ask: object) -> None:
    with pytest.raises(AssayError, match=rf"no \w+ '{name}'.*Did you mean '{nearest}'\? Choose one of .*{nearest}"):
        ask(name)
    with pytest.raises((OptionError, ModelError)) as raised:
        ask("./zzzz")
    assert "Did you mean" not in str(raised.value)


def test_layers_from_their_end_to_their_start_are_refused(sorter: assay.Model) -> None:
    with pytest.raises(OptionError, match=r"'heads\[3:1\]': The start, 3, is after the end, 1.*heads\[1:4\]"):
        parse("heads[3:1]")
    with pytest.raises(OptionError, match=r"The start, 2, is at the end, 2, which is not included.*heads\[2:3\]"):
        parse("heads[2:2]")
    with pytest.raises(OptionError, match="The start, 3, is after the end, 1"):
        assay.sites.heads(sorter).layers(3, 1)
