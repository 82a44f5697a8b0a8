"""The operations that benchmarks/arithmetic.py counts are those that torch counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import assay
from families import HIDDEN, LAYERS, VOCABULARY, WIDTH, tiny_model

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from arithmetic import Layer, needed
from screening_draws import draw_from, make
from screening_runs import row


def counted(model: torch.nn.Module, ids: torch.Tensor, **options: object) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=ids, **options)
    return counter.get_total_flops()


def test_operations_of_a_forward_pass_are_those_that_torch_counts() -> None:
    model = tiny_model("llama-wide-heads", torch.float32)
    model.set_attn_implementation("eager")
    layer, tokens = Layer(WIDTH, HIDDEN, width=14, n_heads=2, n_kv_heads=1), 7
    full_attention = 2 * 2 * 2 * 14 * tokens**2
    expected = LAYERS * (tokens * layer.projection(*range(7)) + full_attention) + 2 * WIDTH * VOCABULARY
    assert counted(model, torch.arange(tokens).unsqueeze(0), logits_to_keep=1) == expected
    # Torch counts scores that the mask hides; needed are those of each position with itself and its past.
    assert layer.attention(0, tokens) == full_attention * (tokens + 1) // (2 * tokens)


@pytest.mark.parametrize("whole_layers", [False, True])
def test_patches_need_only_later_layers_and_positions(whole_layers: bool) -> None:
    row = {"clean": [1, 2, 3, 4, 5], "corrupted": [1, 2, 9, 4, 5]}
    job = {"rows": [row], "n_layers": 3, "d_model": 8, "d_mlp": 12, "width": 4, "n_heads": 2, "n_kv_heads": 1}
    q, kv, o, mlp = 2 * 8 * 8, 2 * 2 * 8 * 4, 2 * 8 * 8, 3 * 2 * 8 * 12
    at = [2 * 2 * 2 * 4 * (position + 1) for position in range(5)]
    every = [q + kv + o + mlp + at[position] for position in range(5)]
    last = {first: sum(every[first:]) if whole_layers else (5 - first) * kv + every[4] - kv for first in (0, 2)}
    entry = sum(every[2:]) if whole_layers else 3 * (o + mlp)
    patched = [entry + sum(every[2:]) + last[2], entry + last[2], last[2] if whole_layers else o + mlp]
    read = 2 * 2 * 8
    expected = 2 * (2 * sum(every) + last[0] + read) + 2 * sum(patch + read for patch in patched)
    assert needed(job, whole_layers=whole_layers) == expected


def test_screening_draws_find_the_top_of_arrays_that_they_made(tmp_path: Path) -> None:
    path = tmp_path / "neurons.npz"
    make("sequence-sort", "sort", path, 2, "neurons[2]", probes=2, seed=0)
    arrays = np.load(path)
    assert {arrays[name].shape for name in ("first_order", "quadratic", "quadratic_stderr", "exact")} == {(512, 2)}
    assert np.corrcoef(arrays["first_order"].ravel(), arrays["exact"].ravel())[0, 1] > 0.9
    count, found = draw_from(path, 5, 0.9, 30)
    assert count == 512
    assert len(found.recall) == len(found.coverage) == 30
    assert np.mean(found.coverage) > 0.87
    assert np.mean(found.recall) > 0.95
    assert max(found.runs) < 512
    assert min(found.spread) > 1


def test_a_screening_is_held_against_the_truth() -> None:
    model = assay.load("sequence-sort")
    pairs = assay.tasks.sort(model, n=2)
    found = assay.screen(model, pairs, sites="neurons[2:4]", probes=2, top=5)
    truth = assay.activation_patching(model, pairs, sites="neurons[2:4]")
    part = assay.activation_patching(model, pairs, sites="neurons[2]")
    cells = row(found, truth, 5, whole=True).split(" | ")
    assert cells[:3] == ["2", f"{found.runs} of 1024", f"{found.cost['forward_equivalents']:.1f}"]
    assert cells[3:5] == [f"{truth.cost['forward_equivalents']:.1f}", "5 of 5"]
    inside, unverified = cells[5].removesuffix(" |").split(" of ")
    assert int(unverified) == 1024 - found.runs
    assert int(inside) > 0.9 * int(unverified)
    assert row(found, part, 5, whole=False).split(" | ")[3:5] == ["not run", "0 missed"]
    found.upper[:] = found.lower - 1
    assert row(found, truth, 5, whole=True).split(" | ")[5].startswith("0 of")


def test_circuits_run_alone_on_tiny_weights(tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "benchmarks/circuits.py"
    out = tmp_path / "circuits.json"
    command = [sys.executable, str(script), "--tiny", "--pairs", "4", "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    sides = json.loads(out.read_text())["sides"]
    expected = ["eap, assay", "eap-ig-inputs, assay", "eap-ig-activations, assay", "curve, assay"]
    assert [side["name"] for side in sides] == expected
