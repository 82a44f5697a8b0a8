"""Trainings are what they say: data, models, checkpoints, the end, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import assay
from assay.data.tasks.sequences import TRANSFORMATIONS, VOCABULARY
from assay.doctor import examine
from assay.errors import AssayError, ModelError, OptionError, StoreError
from assay.training import TrainingSetting, read_checkpoints, train, training_setting
from assay.training.checkpoints import is_scheduled
from assay.training.examples import ModularAddition, Sequences
from assay.training.seed import exact_match
from assay.training.sequence_model import TOKEN_IDS, build_model

TINY: dict[str, Any] = {"layers": 1, "heads": 2, "width": 16, "batch": 8, "held_out": 20, "evaluate_every": 10}


def tiny(task: str = "reverse", **options: Any) -> TrainingSetting:
    return training_setting(task, **{**TINY, "steps": 30, **options})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("task", ["reverse", "sort", "modular-addition"])
def test_the_same_seed_gives_the_same_bytes(task: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    train(tiny(task), tmp_path / "once", seeds=2)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    try:
        torch.set_num_threads(2)
        train(tiny(task), tmp_path / "again", seeds=1)
        train(tiny(task), tmp_path / "again", seeds=2, jobs=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.random.get_rng_state(), before)
    once = contents(tmp_path / "once")
    assert contents(tmp_path / "again") == once
    weights = "final/model.safetensors"
    assert once[f"seed-0/{weights}"] != once[f"seed-1/{weights}"]
    assert once[f"seed-0/{weights}"] != once["seed-0/step-000000/model.safetensors"]


def test_workers_train_as_this_process_does(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    train(tiny(), tmp_path / "one", seeds=3)
    train(tiny(), tmp_path / "two", seeds=3, jobs=2, tell=lambda seed, line: told.append((seed, line["step"])))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert sorted(told) == [(seed, step) for seed in range(3) for step in (0, 10, 13, 18, 20, 24, 30)]


def test_one_length_a_batch_and_what_the_lines_say() -> None:
    generator = torch.Generator().manual_seed(0)
    for kind, transform in TRANSFORMATIONS.items():
        examples = Sequences(kind, 100)
        seen = set()
        for _ in range(60):
            lines = examples.batch(4, generator)
            for row in lines.tokens.tolist():
                symbols = [VOCABULARY[token] for token in row]
                length = lines.answer - 2
                assert (symbols[0], symbols[length + 1], symbols[-1]) == ("START", "SEP", "END")
                numbers = [int(symbol) for symbol in symbols[1 : length + 1]]
                assert [int(symbol) for symbol in symbols[lines.answer : -1]] == transform(numbers)
                seen.add(length)
        assert seen == {3, 4, 5, 6, 7}
        assert [len(lines.tokens) for lines in examples.held_out()] == [20] * 5


def test_what_is_held_out_is_never_trained_on() -> None:
    """So many are held out that one draw in eight of three numbers would be."""
    examples = Sequences("sort", 600_000)
    held_out = {tuple(row) for lines in examples.held_out() for row in lines.tokens.tolist() if lines.answer == 5}
    generator = torch.Generator().manual_seed(1)
    batches = [examples.batch(500, generator) for _ in range(20)]
    rows = [tuple(row) for lines in batches for row in lines.tokens.tolist() if lines.answer == 5]
    assert len(rows) >= 1000
    assert not held_out & set(rows)
    assert len(set(rows)) > 0.99 * len(rows)


def test_a_share_of_the_batches_has_many_repeats() -> None:
    generator = torch.Generator().manual_seed(3)
    for share, few, many in ((0.0, 0, 0), (0.25, 30, 70), (1.0, 200, 200)):
        examples = Sequences("sort", 20, share)
        batches = [examples.batch(64, generator) for _ in range(200)]
        rows = [lines.tokens[:, 1 : lines.answer - 1].tolist() for lines in batches]
        repeated = [sum(len(set(row)) < len(row) for row in numbers) / 64 for numbers in rows]
        assert few <= sum(value > 0.33 for value in repeated) <= many, share


def test_the_learning_rate_decays_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[float] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (used.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    train(tiny(steps=4, decay=True), tmp_path / "decay")
    train(tiny(steps=2), tmp_path / "constant")
    half = 0.5**0.5 / 2
    assert used == pytest.approx([1e-3, 1e-3 * (0.5 + half), 5e-4, 1e-3 * (0.5 - half), 1e-3, 1e-3])


def test_sums_are_held_out_in_both_orders() -> None:
    generator = torch.Generator().manual_seed(0)
    for share in (0.3, 0.7):
        examples = ModularAddition(share, 1000)
        (held_out,) = examples.held_out()
        assert len(held_out.tokens) == 1000
        trained = examples.batch(200_000, generator).tokens
        for a, b, equals, c in torch.cat([trained[:100], held_out.tokens]).tolist():
            assert (a - 3 + b - 3) % 97 == c - 3
            assert equals == 2
        known = {frozenset(row[:2]) for row in trained.tolist()}
        assert not known & {frozenset(row[:2]) for row in held_out.tokens.tolist()}
        assert len(known) == pytest.approx(share * 97 * 98 / 2, abs=1)


def test_exact_match_is_greedy_decoding(sorter: assay.Model) -> None:
    generator = torch.Generator().manual_seed(5)
    draws = (torch.randint(1, 20, (40, length), generator=generator) for length in (7, 11))
    for lines in (Sequences("sort", 5)._lines(numbers) for numbers in draws):
        prompts, answers = lines.tokens[:, : lines.answer], lines.tokens[:, lines.answer :]
        decoded = sorter.hf.generate(prompts, max_new_tokens=answers.shape[1], do_sample=False)[:, lines.answer :]
        padded = torch.nn.functional.pad(decoded, (0, answers.shape[1] - decoded.shape[1]))
        right = (padded == answers).all(1)
        assert torch.equal(exact_match(sorter.hf, lines), right)
    assert 0 < right.double().mean() < 1


@pytest.mark.parametrize("positions", ["none", "rotary", "learned"])
def test_models_of_every_kind_of_positions_pass_all_checks(positions: str, tmp_path: Path) -> None:
    (made,) = train(tiny("reverse", positions=positions, layers=2), tmp_path / "made")
    model = assay.load(made.folder)
    assert [check.name for check in examine(model) if not check.passed] == []
    assert model.hf.num_parameters() == build_model(positions=positions, layers=2, heads=2, width=16).num_parameters()
    pairs = assay.tasks.reverse(model, n=4, length=4)
    scores = assay.activation_patching(model, pairs, sites="heads,mlps", force=True)
    assert len(scores.components) == 2 * (2 + 1)


def test_positions_are_seen_or_not() -> None:
    """In one layer without positions, the tokens before the last may stand in any order."""
    ids = torch.tensor([[5, 9, 7, 8], [7, 5, 9, 8]])
    for positions, sees in (("none", False), ("rotary", True), ("learned", True)):
        torch.manual_seed(0)
        logits = build_model(positions=positions, layers=1, heads=2, width=16).double()(ids).logits[:, -1]
        assert torch.allclose(logits[0], logits[1], atol=1e-9) is not sees, positions


def test_modular_addition_is_a_task_of_its_models(tmp_path: Path) -> None:
    (made,) = train(tiny("modular-addition", steps=5), tmp_path / "made")
    model = assay.load(made.folder)
    pairs = assay.tasks.modular_addition(model, n=4)
    scores = assay.attribution_patching(model, pairs, sites="heads,mlps", force=True)
    assert len(scores.components) == 3
    assert scores.metric == "logit-diff"


def test_the_schedule_is_eight_a_decade(tmp_path: Path) -> None:
    first = [0, 10, 13, 18, 24, 32, 42, 56, 75, 100, 133, 178, 237, 316, 422, 562, 750, 1000]
    assert [step for step in range(1200) if is_scheduled(step)] == first
    assert sum(is_scheduled(step) for step in range(10_000, 100_000)) == 8
    train(tiny(steps=60), tmp_path / "made", seeds=2)
    found = read_checkpoints(tmp_path / "made")
    assert [(each.seed, each.step, each.final) for each in found] == [
        (seed, step, step == 60) for seed in (0, 1) for step in [*first[:8], 60]
    ]
    for each in found:
        log = [json.loads(line) for line in (each.folder.parent / "log.jsonl").read_text().splitlines()]
        (line,) = (line for line in log if line["step"] == each.step)
        assert (line["accuracy"], line["loss"]) == (each.accuracy, each.loss)


def test_a_checkpoint_at_the_last_step_is_listed_once(tmp_path: Path) -> None:
    train(tiny(steps=18), tmp_path / "made")
    assert [(each.step, each.final) for each in read_checkpoints(tmp_path / "made")] == [
        (0, False),
        (10, False),
        (13, False),
        (18, True),
    ]


def test_training_ends_where_enough_is_known_unless_it_is_long(tmp_path: Path) -> None:
    learns = {"layers": 2, "width": 64, "batch": 64, "learning_rate": 3e-3, "held_out": 100, "steps": 200,
              "decay": False}  # fmt: skip
    (short,) = train(tiny("sort", **learns, wanted=0.05), tmp_path / "short")
    steps = [json.loads(line) for line in (tmp_path / "short/seed-0/log.jsonl").read_text().splitlines()]
    assert short.accuracy >= 0.05
    assert short.step == steps[-1]["step"] < 200
    assert all(line["accuracy"] < 0.05 for line in steps[:-1])
    (long,) = train(tiny("sort", **{**learns, "steps": short.step + 10}, wanted=0.05, long=True), tmp_path / "long")
    assert long.step == short.step + 10
    assert (
        (tmp_path / "long/seed-0/log.jsonl").read_text().startswith((tmp_path / "short/seed-0/log.jsonl").read_text())
    )


def test_the_loss_is_that_of_the_answer_alone(tmp_path: Path) -> None:
    train(tiny(steps=1, batch=3), tmp_path / "made")
    line = json.loads((tmp_path / "made/seed-0/log.jsonl").read_text().splitlines()[1])
    model = assay.load(tmp_path / "made/seed-0/step-000000").hf.double()
    lines = Sequences("reverse", 20).batch(3, torch.Generator().manual_seed(0))
    losses = []
    for row in lines.tokens:
        log_probs = model(row[None]).logits[0].log_softmax(-1)
        sep = row.tolist().index(TOKEN_IDS["SEP"])
        losses += [-log_probs[at - 1, row[at]].item() for at in range(sep + 1, len(row))]
    assert line["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert line["trained"] == 0.0


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("srt", {}, "Did you mean 'sort'"),
        ("sort", {"positions": "rotated"}, "Choose one of none, rotary, learned"),
        ("sort", {"share": 0.5}, "--share belongs to modular-addition"),
        ("modular-addition", {"share": 0.9}, "from 0.3 to 0.7"),
        ("modular-addition", {"weight_decay": -1.0}, "at least 0"),
        ("modular-addition", {"weight_decay": math.nan}, "at least 0"),
        ("sort", {"steps": 0}, "--steps must be at least 1"),
        ("sort", {"learning_rate": 0.0}, "above 0"),
        ("sort", {"width": 30, "heads": 4}, "width of 30"),
        ("sort", {"wanted": 0.0}, "above 0"),
        ("sort", {"repeats": 1.5}, "repeats is a share"),
        ("modular-addition", {"repeats": 0.5}, "repeats belongs to sort and reverse"),
        ("sort", {"momentum": 0.9}, "no option 'momentum'"),
    ],
)
def test_what_makes_no_training_is_refused(task: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        training_setting(task, **options)


def test_other_folders_are_refused_and_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("words")
    with pytest.raises(StoreError, match="holds no training"):
        train(tiny(), mine)
    assert contents(mine) == {"thesis.txt": b"words"}
    with pytest.raises(StoreError, match="not a folder"):
        train(tiny(), mine / "thesis.txt")
    made = tmp_path / "made"
    train(tiny(), made)
    before = contents(made)
    with pytest.raises(StoreError, match=r"steps: 30 there, 40 now"):
        train(tiny(steps=40), made)
    with pytest.raises(OptionError, match="--seeds must be at least 1"):
        train(tiny(), made, seeds=0)
    assert contents(made) == before
    (made / "training.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        train(tiny(), made)


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="loss of seed 0 is nan at step"):
        train(tiny(learning_rate=1e30), tmp_path / "made")
    with pytest.raises(StoreError, match=r"Seed 0 .* is not finished"):
        read_checkpoints(tmp_path / "made")


def test_what_is_no_training_has_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="holds no training"):
        read_checkpoints(tmp_path)
