"""Plans against runs, on models whose weights are there after all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.errors import ModelError, OptionError
from assay.methods import METHODS
from assay.model import Model
from assay.planning import plan
from assay.planning.costs import Workload, cost_of
from assay.planning.made_up import made_up, word_tokenizer
from assay.planning.memory import parameters, weight_bytes
from assay.planning.plan import SCREEN, Line, choose
from assay.planning.stand_ins import outline, shadow
from families import TINY, tiny_model

BY_COMPONENT = ("activation-patching", "integrated-gradients", "hvp", "zero-ablation")
FOR_ALL = ("attribution-patching", "gim", "hvp-sampled", "random")
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip


def workload(family: str, sites: str = "heads,mlps") -> tuple[Workload, Model]:
    """A plan's work, and the model that it is a plan of, with words of the same tokenizer."""
    hf = tiny_model(family, torch.float32)
    lengths = ((9, 4), (9, 4), (11, 5))
    pairs = made_up(lengths)
    small = shadow(hf.config, word_tokenizer(), family)
    whole = outline(hf.config, family, torch.float32)
    config = hf.config
    config.vocab_size = 64
    model = Model(type(hf)(config).eval(), word_tokenizer(), family)
    return Workload(small, whole, pairs, lengths, len(pairs), sites, None, 1 << 30), model


@pytest.mark.parametrize("family", TINY)
def test_foreseen_cost_is_what_a_run_costs(family: str) -> None:
    work, model = workload(family)
    for name in ("activation-patching", "attribution-patching"):
        spent = assay.measure(name, model, work.pairs, sites=work.sites, force=True).cost["forward_equivalents"]
        assert cost_of(METHODS[name], work).forward_equivalents == pytest.approx(spent, rel=0.05)


@pytest.mark.parametrize("name", BY_COMPONENT + FOR_ALL)
def test_every_kind_of_method_is_foreseen(name: str) -> None:
    work, model = workload("llama", "heads[1:3],mlps@last")
    spent = assay.measure(name, model, work.pairs, sites=work.sites, force=True).cost["forward_equivalents"]
    assert cost_of(METHODS[name], work).forward_equivalents == pytest.approx(spent, rel=0.05)


@pytest.mark.parametrize("family", TINY)
def test_weights_are_counted_as_torch_counts_them(family: str) -> None:
    hf = tiny_model(family, torch.float32)
    whole = outline(hf.config, family, torch.bfloat16)
    assert parameters(whole) == sum(parameter.numel() for parameter in hf.parameters())
    assert weight_bytes(whole) >= 2 * parameters(whole)


def test_a_configuration_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    found = plan(
        str(tmp_path), n=4, tokens=(15, 10), dtype=torch.bfloat16, sites="heads", methods=["attribution-patching"],
        operations_per_second=4e14, device_memory=[12 << 30, 12 << 30],
    )  # fmt: skip
    assert found.parameters == 8_030_261_248
    assert found.weight_bytes == pytest.approx(2 * found.parameters, rel=1e-3)
    assert found.components == 32 * 32
    assert sum(place.layers for place in found.placements) == 32
    assert sum(place.weight_bytes for place in found.placements) == pytest.approx(found.weight_bytes, rel=1e-3)
    assert [line.method for line in found.lines] == ["attribution-patching", SCREEN]


def test_a_slice_of_the_model_is_timed_here() -> None:
    found = plan("sequence-sort", lambda model: assay.tasks.sort(model, n=4), n=4, methods=["attribution-patching"])
    assert "measured here" in found.speed
    assert all(line.seconds > 0 for line in found.lines)
    assert found.positions > found.shared >= 0


def test_the_choice_is_the_most_that_can_be_known_in_the_time() -> None:
    def lines(exact: float, screened: float) -> list[Line]:
        return [Line("activation-patching", 1, exact, 1, 0), Line(SCREEN, 1, screened, 1, 0)]

    assert choose(lines(60, 600), 1.0)[0] == "activation-patching"
    assert choose(lines(600, 60), 1.0)[0] == "activation-patching"
    assert choose(lines(7200, 60), 1.0)[0] == SCREEN
    name, why = choose(lines(72000, 7200), 1.0)
    assert name == SCREEN
    assert "--budget" in why


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokens", "15"], "--tokens"),
        (["--tokens", "10:10"], "begin with 0 to 9 tokens alike"),
        (["--tflops", "-1", "--tokens", "9:4"], "--tflops"),
        (["--dtype", "int8", "--tokens", "9:4"], "dtype"),
        (["--hours", "0", "--tokens", "9:4"], "--hours"),
        (["--methods", "hvp", "--dtype", "bfloat16", "--tokens", "9:4", "--tflops", "1"], "Second derivatives"),
        ([], "has no tokenizer"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"num_hidden_layers": 2}))
    with pytest.raises((OptionError, ModelError), match=said):
        CliRunner().invoke(app, ["plan", str(tmp_path), *options], catch_exceptions=False)
