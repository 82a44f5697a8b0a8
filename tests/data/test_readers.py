"""Reading prompts as others keep them: what is accepted, and what is refused with its place."""

from __future__ import annotations

import csv
import json
import sys
import types
from pathlib import Path

import pandas as pd
import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from transformers import PreTrainedTokenizerFast

import assay
from assay.data.pairs import members
from assay.data.readers import as_pairs, open_prompts, parse_columns, read_jsonl, read_pairs
from assay.data.tasks import make_pairs
from assay.errors import DataError, OptionError
from conftest import wrapped

SHARED = Path(__file__).parents[3] / "shared" / "data"
FIELDS = ("clean", "corrupted", "answer", "wrong_answer", "id", "group")
ROWS = [
    ("w1 w2", "w1 w3", " w5", " w6", "first", "g"),
    ('<b>"one, two"</b>\n🙂', "שלום \u2028 مرحبا", " é", " NA", "007", "null"),
]
NUMBERS = [str(i) for i in range(10)] + [f"{i:02}" for i in range(100)] + [f"{i:03}" for i in range(1000)]


def shared(name: str) -> Path:
    if not (SHARED / name).is_file():
        pytest.skip(f"{SHARED / name} is not here")
    return SHARED / name


def digits_model(most: int) -> assay.Model:
    """A tokenizer that takes up to so many digits as one token."""
    tokenizer = Tokenizer(WordLevel({"?": 0, **{text: i for i, text in enumerate(NUMBERS, 1)}}, unk_token="?"))
    pattern = Regex(rf"\d{{1,{most}}}")
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), Split(pattern, "isolated")])
    return assay.Model(
        wrapped("llama").hf, PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?"), "digits"
    )


def write_table(path: Path, names: tuple[str, ...] = FIELDS, rows: list[tuple] = ROWS) -> Path:
    records = [dict(zip(names, row, strict=True)) for row in rows]
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    elif path.suffix == ".parquet":
        pd.DataFrame(records).to_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".json"])
def test_all_tables_give_the_same_pairs(suffix: str, tmp_path: Path) -> None:
    expected = [dict(zip(FIELDS, row, strict=True)) for row in ROWS]
    pairs = read_pairs(write_table(tmp_path / f"mine{suffix}"))
    assert pairs.to_records() == expected
    assert pairs.task == "mine"
    names = ("prompt", "other", "target", "wrong_answer", "id", "group")
    columns = {"clean": "prompt", "corrupted": "other", "answer": "target"}
    renamed = write_table(tmp_path / f"renamed{suffix}", names)
    assert read_pairs(renamed, columns=columns).to_records() == expected
    assert read_pairs(renamed, columns=columns).options["columns"] == columns
    with pytest.raises(DataError, match=r"lacks 'clean', 'corrupted', 'answer'.*--columns clean=.*columns="):
        read_pairs(renamed)
    with pytest.raises(
        DataError, match=r"no column 'prompts', which --columns gives for clean. It has 'prompt', 'other'"
    ):
        read_pairs(renamed, columns={**columns, "clean": "prompts"})
    assert len(make_pairs(wrapped("llama"), str(tmp_path / f"mine{suffix}"), n=1)) == 1


SETS = [("w1 w2", "w1 w3", [" w5", " w6"], [" w7", " w8", " w9"], "first", "g"), ("a", "b", [" c"], " d", "2", "")]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".json"])
def test_lists_of_answers_are_sets(suffix: str, tmp_path: Path) -> None:
    rows: list[tuple] = SETS[:1] if suffix == ".parquet" else SETS
    if suffix == ".csv":
        rows = [tuple(json.dumps(cell) if isinstance(cell, list) else cell for cell in row) for row in rows]
    pairs = read_pairs(write_table(tmp_path / f"mine{suffix}", rows=rows))
    assert (pairs[0].answer, pairs[0].wrong_answer) == ((" w5", " w6"), (" w7", " w8", " w9"))
    assert [pair.answer for pair in pairs.pairs[1:]] == [" c"] * (len(rows) - 1)
    renamed = write_table(tmp_path / f"renamed{suffix}", ("clean", "corrupted", "right", *FIELDS[3:]), rows)
    assert read_pairs(renamed, columns={"answer": "right"}).pairs == pairs.pairs


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("['a', 'b']", r"row 1: 'answer' looks like a list but is not a JSON array: \['a', 'b'\]"),
        ("['a' 'b']", "looks like a list"),
        ('["a", "b",]', "looks like a list"),
        ('["a", ""]', r"row 1: 'answer' must be a non-empty string"),
        ('["a", 3, "b"]', r"row 1: 'answer' must be a non-empty string, not 3"),
    ],
)
def test_cells_that_are_nearly_lists_are_refused(cell: str, complaint: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv", ("clean", "corrupted", "answer"), [("x", "y", cell)])
    with pytest.raises(DataError, match=complaint):
        read_pairs(path)


def test_brackets_alone_make_no_list(tmp_path: Path) -> None:
    rows = [('["x", "y"]', "y", " [12]"), ("x", "y", " [a]"), ("x", "y", "[]")]
    pairs = read_pairs(write_table(tmp_path / "a.csv", ("clean", "corrupted", "answer"), rows))
    assert [(pair.clean, pair.answer) for pair in pairs] == [(row[0], row[2]) for row in rows]


def test_missing_cells_are_no_values(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("clean,corrupted,answer,wrong_answer,id\na,b, c,,\nd,e, f\n")
    pd.DataFrame(
        {"clean": ["a"], "corrupted": ["b"], "answer": [[" c"]], "wrong_answer": [None], "id": [7]}
    ).to_parquet(tmp_path / "a.parquet")
    pairs = read_pairs(tmp_path / "a.csv")
    assert [(pair.answer, pair.wrong_answer, pair.id) for pair in pairs] == [
        (" c", None, "row 1"),
        (" f", None, "row 2"),
    ]
    (pair,) = read_pairs(tmp_path / "a.parquet")
    assert (pair.answer, pair.wrong_answer, pair.id) == (" c", None, "7")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "clean,corrupted,answer\n", "has no rows"),
        ("a.csv", "clean,corrupted,answer\na,b,c\na,b,c,d\n", "line 3"),
        ("a.csv", "clean,clean,answer\na,b,c\n", "more than one column 'clean'"),
        ("a.csv", "clean;corrupted;answer\na;b;c\n", "not separated by commas"),
        ("a.csv", "clean,corrupted,answer\na,b,c\na,,c\n", "row 2: 'corrupted' must be a non-empty string, not empty"),
        ("a.csv", "clean,corrupted,anwser\na,b,c\n", "row 1: column 'anwser' .* did you mean 'answer'"),
        ("a.csv", b"clean,corrupted,answer\n\xff,b,c\n", "UTF-8"),
        ("a.parquet", "clean", "not a parquet file"),
        ("a.json", "{", "line 1: not JSON"),
        ("a.json", "{}", "neither a list of objects"),
        ("a.json", "[3]", "row 1: expected a JSON object"),
        ("a.json", "[" * 100_000, "nested too deep"),
        ("a.txt", "x", r"Give a \.jsonl, \.csv, \.parquet or \.json file"),
    ],
)
def test_bad_files_are_refused(name: str, content: str | bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=complaint):
        read_pairs(tmp_path / name)


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    assert parse_columns("clean=a prompt,answer=b") == {"clean": "a prompt", "answer": "b"}
    for text in ("clean", "clean=", "clean=a,clean=b", ""):
        with pytest.raises(OptionError, match="like clean=prompt"):
            parse_columns(text)
    with pytest.raises(OptionError, match="there is no 'prompt'"):
        parse_columns("prompt=clean")
    path = write_table(tmp_path / "a.csv")
    with pytest.raises(OptionError, match="no templates"):
        read_pairs(path, template=1)
    with pytest.raises(OptionError, match="at least 1"):
        read_pairs(path, n=0)


IOI = "clean,corrupted,corrupted_hard,correct_idx,incorrect_idx\n"


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("Then, Ann and Bob met. Bob gave it to", (" Ann", " Bob")),
        ("Bob and Ann met. Bob gave it to", (" Ann", " Bob")),
        ("Ann and Bob met; Bob gave it to", (" Ann", " Bob")),
        ("When Zoë and Jean-Luc met, Jean-Luc gave it to", (" Zoë", " Jean-Luc")),
        ("Then, Ann and Bob met. Cid gave it to", None),
        ("Ann and Bob met. Then Bob gave it to", None),
        ("Then, Ann, Cid and Bob met. Bob gave it to", None),
    ],
)
def test_ioi_answers_are_told_from_the_text(prompt: str, names: tuple[str, str] | None, tmp_path: Path) -> None:
    path = tmp_path / "ioi.csv"
    good = '"Then, Ann and Bob met. Bob gave it to",x,y,1,2\n'
    path.write_text(f'{IOI}{good}"{prompt}",abc,hard,1,2\n', encoding="utf-8")
    if names is None:
        with pytest.raises(DataError, match="row 2: the answer cannot be told from the clean prompt"):
            read_pairs(path)
        return
    pair = read_pairs(path)[1]
    assert ((pair.answer, pair.wrong_answer), pair.corrupted) == (names, "abc")
    assert read_pairs(path, columns={"corrupted": "corrupted_hard"})[1].corrupted == "hard"


def write_years(path: Path, labels: list[str]) -> Path:
    rows = [
        (f"From the year 13{label:0>2} to the year 13", "From the year 1301 to the year 13", label) for label in labels
    ]
    return write_table(path, ("clean", "corrupted", "label"), rows)


def test_greater_than_answers_fit_the_tokenizer(tmp_path: Path) -> None:
    path = write_years(tmp_path / "years.csv", ["52", "4", "99", "95"])
    years = read_pairs(path, digits_model(2))
    assert [pair.id for pair in years] == ["row 1", "row 2", "row 4"]
    for pair, label in zip(years, (52, 4, 95), strict=True):
        assert members(pair.answer) == tuple(f"{year:02}" for year in range(label + 1, 100))
        assert members(pair.wrong_answer) == tuple(f"{year:02}" for year in range(label + 1))
    assert years.options["dropped"] == {"no later single-token year": 1}
    assert years.metric == "prob-diff"
    (tens,) = read_pairs(path, digits_model(1))
    assert (tens.answer, tens.wrong_answer) == (tuple("6789"), tuple("01234"))
    assert read_pairs(path, digits_model(2), n=2).pairs == years.pairs[:2]
    with pytest.raises(DataError, match="no answer begins a new token"):
        read_pairs(path, digits_model(3))
    with pytest.raises(DataError, match="depend on a tokenizer"):
        read_pairs(path)
    with pytest.raises(DataError, match="no row can be used: no tens digit"):
        read_pairs(write_years(tmp_path / "none.csv", ["99", "5"]), digits_model(1))
    bad = write_table(tmp_path / "bad.csv", ("clean", "corrupted", "label"), [("The year 1352 to 14", "x", "52")])
    with pytest.raises(DataError, match="row 1: expected a prompt such as"):
        read_pairs(bad, digits_model(2))


def relation(path: Path, samples: list, **more: object) -> Path:
    found = [{"subject": s, "object": o} for s, o in samples]
    path.write_text(json.dumps({"prompt_templates": ["Of {} is"], "samples": found, **more}), encoding="utf-8")
    return path


def test_relations_pair_subjects_of_one_length(tmp_path: Path) -> None:
    model = digits_model(1)
    samples = [("Brazil", r"Bras\u00edlia"), ("Peru", "Lima"), ("San Marino", "San Marino"), ("Chile", r"\ud83d\ude42")]
    path = relation(tmp_path / "r.json", samples, prompt_templates_zs=["Of {} is", "{} has"])
    pairs = read_pairs(path, model)
    assert [pair.answer for pair in pairs] == [" Brasília", " Lima", " 🙂"]
    for pair in pairs:
        assert pair.wrong_answer != pair.answer
        (other,) = [s for s in ("Brazil", "Peru", "Chile") if pair.corrupted == f"Of {s} is"]
        assert other not in pair.clean
    assert pairs.options["dropped"] == {"no partner of the same token length with another object": 1}
    assert read_pairs(path, model, template=1)[0].clean == "Brazil has"
    assert len({read_pairs(path, model, seed=seed).pairs for seed in range(8)}) > 1
    assert read_pairs(path, model, n=2).pairs == pairs.pairs[:2]
    with pytest.raises(OptionError, match=r"no template 2.*\n  0: 'Of {} is'\n  1: '{} has'"):
        read_pairs(path, model, template=2)
    with pytest.raises(OptionError, match="not a table"):
        read_pairs(path, model, columns={"clean": "subject"})
    with pytest.raises(DataError, match="none of 2 samples can be used: no partner"):
        read_pairs(relation(tmp_path / "same.json", [("Peru", "Spanish"), ("Chile", "spanish")]), model)
    with pytest.raises(DataError, match="sample 2: needs texts for subject and object"):
        read_pairs(relation(tmp_path / "bad.json", [("Peru", "Lima"), ("Chile", None)]), model)
    with pytest.raises(DataError, match="once"):
        read_pairs(relation(tmp_path / "no.json", [("a", "b")], prompt_templates=["nothing"]), model)


class Table:
    """As much of a data set as is used."""

    def __init__(self, records: list[dict]) -> None:
        self.records = records
        self.column_names = list(records[0])

    def select_columns(self, names: list[str]) -> Table:
        return Table([{name: record[name] for name in names} for record in self.records])

    def __iter__(self):
        return iter(self.records)


def test_hub_data_sets_are_read_like_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*arguments: object, **options: object) -> Table:
        asked.append((*arguments, options["split"]))
        if "gone" in str(arguments[0]):
            raise ConnectionError("Couldn't reach the Hub")
        names = ("prompt", "corrupted", "answer", "wrong_answer", "id", "image")
        return Table([dict(zip(names, (*row[:5], object()), strict=True)) for row in ROWS])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    columns = {"clean": "prompt"}
    pairs = read_pairs("hf:me/mine", columns=columns)
    assert (pairs.task, pairs[1].clean, pairs[1].corrupted, pairs[1].id) == ("mine", *ROWS[1][:2], "007")
    assert open_prompts("hf:me/mine", columns).sha256 == pairs.options["sha256"]
    for name in ("hf:me/mine:test", "hf:me/mine:fr", "hf:me/mine:fr:dev", "hf:me/mine::dev", "hf:me/mine:test[:10]"):
        assert len(make_pairs(wrapped("llama"), name, n=1, columns=columns)) == 1
    assert [call[1:] for call in asked[2:]] == [
        (None, "test"), ("fr", "train"), ("fr", "dev"), (None, "dev"), (None, "test[:10]"),
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"hf:me/mine has no column 'clean'; it has 'prompt'.*--columns"):
        read_pairs("hf:me/mine")
    with pytest.raises(DataError, match=r"me/gone .* cannot be loaded: Couldn't reach the Hub"):
        read_pairs("hf:me/gone")
    for name in ("hf:", "hf:a:b:c:d"):
        with pytest.raises(OptionError, match="is named hf:owner/name"):
            read_pairs(name)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'assay\[datasets\]'"):
        read_pairs("hf:me/mine")


def test_a_folder_can_stand_for_a_hub_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "mine").mkdir()
    write_table(tmp_path / "mine" / "test.parquet")
    pairs = read_pairs(f"hf:{tmp_path / 'mine'}:test")
    assert pairs.to_records() == [dict(zip(FIELDS, row, strict=True)) for row in ROWS]
    with pytest.raises(DataError, match="cannot be loaded"):
        read_pairs(f"hf:{tmp_path / 'mine'}:fr:test")


def test_paths_of_any_format_stand_for_pairs(tmp_path: Path) -> None:
    path = write_table(tmp_path / "mine.csv", rows=ROWS[:1])
    assert as_pairs(path) == read_pairs(path)
    assert as_pairs(str(path)).pairs == read_jsonl(write_table(tmp_path / "mine.jsonl", rows=ROWS[:1])).pairs
    scores = assay.attribution_patching(wrapped("llama"), path, force=True)
    assert scores.configuration["task"]["sha256"] == open_prompts(path).sha256


REAL = [
    ("eap_ig/ioi_llama.csv", {}, "reject", r"of 8 pairs cannot be used(.|\n)*--align"),
    ("eap_ig/ioi_llama.csv", {}, "pad", None),
    ("eap_ig/ioi_llama.csv", {}, "skip", None),
    ("eap_ig/ioi_llama.csv", {"columns": {"corrupted": "corrupted_hard"}}, "last-k", None),
    ("eap_ig/greater_than_data.csv", {}, "reject", None),
    ("relations/adj_antonym.json", {}, "reject", None),
    ("relations/country_capital_city.json", {"template": 2}, "reject", None),
    ("relations/country_language.json", {}, "reject", None),
    ("relations/person_plays_pro_sport.json", {}, "reject", "does not tell clean from corrupted"),
]


@pytest.mark.xdist_group("real models")
@pytest.mark.parametrize(("name", "options", "align", "refusal"), REAL)
def test_real_files_run_or_are_refused_with_a_reason(
    name: str, options: dict, align: str, refusal: str | None, smollm2: assay.Model
) -> None:
    pairs = read_pairs(shared(name), smollm2, n=8, align=align, **options)
    if refusal is not None:
        with pytest.raises(DataError, match=refusal):
            assay.attribution_patching(smollm2, pairs, align=align, sites="mlps")
        return
    scores = assay.attribution_patching(smollm2, pairs, align=align, sites="mlps")
    assert scores.values.shape == (30, 8)
    assert scores.baseline.difference > 0


def test_every_row_of_the_real_ioi_file_has_its_answer() -> None:
    pairs = read_pairs(shared("eap_ig/ioi_llama.csv"))
    assert len(pairs) == 499
    for pair in pairs:
        assert (pair.clean.count(pair.answer), pair.corrupted.count(pair.wrong_answer)) == (1, 1)
