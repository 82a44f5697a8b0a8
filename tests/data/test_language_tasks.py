"""The language tasks: their answers recomputed from the prompts, for two ways of dividing text into tokens."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import assay
from assay.data import PromptPair
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.data.pairs import members
from assay.data.tasks import TASKS, make_pairs
from assay.data.tasks.agreement import ATTRACTORS, SUBJECTS
from assay.data.tasks.facts import RELATIONS, TEMPLATES
from assay.data.tasks.sentiment import NEGATIVE, POSITIVE
from assay.errors import DataError, OptionError

NAMES = ("greater-than", "facts", "agreement", "induction", "sentiment", "copy-colours", "arithmetic")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("greater-than", {}),
    *(("facts", {"relation": relation}) for relation in (*RELATIONS, "all")),
    ("agreement", {}),
    ("induction", {}),
    ("induction", {"length": 12}),
    ("sentiment", {"kind": "reviews"}),
    ("sentiment", {"kind": "words"}),
    ("copy-colours", {}),
    ("arithmetic", {"operation": "plus"}),
    ("arithmetic", {"operation": "minus"}),
]
real = pytest.mark.xdist_group("real models")


def word_tokenizer(*texts: str) -> PreTrainedTokenizerFast:
    """Whole words with the space before them, numbers in pairs of digits; what is not in ``texts`` is unknown."""
    parts = pre_tokenizers.Split(Regex(r" ?\d{1,2}| ?[A-Za-z]+|\s| ?[^\sA-Za-z\d]"), "isolated")
    words = {"UNK", "\n", " "}
    for word in {*re.findall(r"[A-Za-z]+|[^\sA-Za-z\d]", " ".join(texts)), *map(str, range(100))}:
        words |= {word, f" {word}"}
    words |= {f"0{digit}" for digit in range(10)}
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(sorted(words))}, unk_token="UNK"))
    core.pre_tokenizer = parts
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="UNK")


def reader_of(tokenizer: PreTrainedTokenizerFast | None) -> assay.Model:
    """As much of a model as the making of pairs looks at."""
    return cast(
        assay.Model,
        SimpleNamespace(name="reader", tokenizer=tokenizer, context_length=None, vocab_size=len(tokenizer or ())),
    )


@pytest.fixture(scope="session")
def words() -> assay.Model:
    texts = [inspect.getsource(inspect.getmodule(TASKS[name].make)) for name in NAMES]
    plurals = [ending for noun in (*SUBJECTS, *ATTRACTORS) for ending in (f"{noun}s", f"{noun}es")]
    return reader_of(word_tokenizer(*texts, *plurals))


@real
@pytest.mark.parametrize(("task", "options"), CASES)
def test_answers_follow_from_the_prompts(
    task: str, options: dict[str, Any], smollm2: assay.Model, words: assay.Model
) -> None:
    for model in (smollm2, words):
        pairs = make_pairs(model, task, n=16, **options)
        assert (len(pairs), pairs.task, pairs.metric) == (16, task, TASKS[task].metric)
        assert pairs.options == TASKS[task].defaults | options
        assert len({(pair.clean, pair.corrupted) for pair in pairs}) == 16
        for pair, row in zip(pairs, encode(model, pairs, METRICS[pairs.metric]), strict=True):
            assert len(row.clean) == len(row.corrupted)
            assert 0 < row.first_difference < len(row.clean)
            assert len(row.tokens) == 1
            assert row.wrong not in (-1, *row.tokens)
            CHECKS[task](pair)
        assert pairs.pairs == make_pairs(model, task, n=16, **options).pairs
        assert pairs.pairs[:8] == make_pairs(model, task, n=8, **options).pairs
        assert pairs.pairs != make_pairs(model, task, n=16, seed=1, **options).pairs


def check_greater_than(pair: PromptPair) -> None:
    pattern = r"The (\w+) lasted from the year (\d\d)(\d\d) to the year (\d\d)"
    clean, corrupted = (re.fullmatch(pattern, text).groups() for text in (pair.clean, pair.corrupted))
    assert corrupted == (clean[0], clean[1], "01", clean[1])
    assert clean[1] == clean[3]
    start = int(clean[2])
    above, below = members(pair.answer), members(pair.wrong_answer)
    if len(above[0]) == 1:  # by digits: whatever the last digit becomes
        assert all(int(tens + "0") > start for tens in above)
        assert all(start > int(tens + "9") for tens in below)
        assert {*above, *below, str(start // 10)} == set("0123456789")
        assert len(above) + len(below) == 9
    else:
        assert [int(year) for year in above] == [year for year in range(100) if year > start]
        assert [int(year) for year in below] == [year for year in range(100) if year <= start]


def check_facts(pair: PromptPair) -> None:
    before, after = TEMPLATES[pair.group].split("{subject}")
    for prompt, answer in ((pair.clean, pair.answer), (pair.corrupted, pair.wrong_answer)):
        assert prompt.startswith(before)
        assert prompt.endswith(after)
        subject = prompt.removeprefix(before).removesuffix(after)
        assert answer == f" {RELATIONS[pair.group][subject]}"


def check_agreement(pair: PromptPair) -> None:
    singular = {" is": True, " was": True, " are": False, " were": False}
    assert {pair.answer, pair.wrong_answer} in ({" is", " are"}, {" was", " were"})
    assert (pair.answer in (" was", " were")) == (" were red." in pair.clean)
    for prompt, verb in ((pair.clean, pair.answer), (pair.corrupted, pair.wrong_answer)):
        sentence = prompt.rsplit(". ", 1)[1].split()
        subject = sentence[1 if pair.group == "attractor" else 2]
        assert subject.endswith("s") != singular[verb]
        assert len(sentence) == (5 if pair.group == "attractor" else 3)
    if pair.group == "attractor":
        assert pair.clean.endswith("s") == singular[pair.answer]
        assert pair.clean.split()[-3:] == pair.corrupted.split()[-3:]


def check_induction(pair: PromptPair) -> None:
    clean, corrupted = (text.rsplit("\n", 1)[1].split() for text in (pair.clean, pair.corrupted))
    assert pair.clean.rsplit("\n", 1)[0] == pair.corrupted.rsplit("\n", 1)[0]
    *earlier, repeated = clean
    assert len(set(earlier)) == len(earlier)
    place = earlier.index(repeated)
    assert pair.answer == f" {earlier[place + 1]}"
    assert pair.wrong_answer[1:] in set(earlier) - {repeated, earlier[place + 1]}
    assert len(set(corrupted)) == len(corrupted)
    assert [i for i, (a, b) in enumerate(zip(clean, corrupted, strict=True)) if a != b] == [place]


def check_sentiment(pair: PromptPair) -> None:
    assert {pair.answer, pair.wrong_answer} == {" positive", " negative"}
    assert pair.answer == f" {pair.group}"
    for prompt, label in ((pair.clean, pair.answer), (pair.corrupted, pair.wrong_answer)):
        review = re.findall(r"[a-z]+", prompt.rsplit("Review: ", 1)[1].lower())
        found = [word in POSITIVE for word in review if word in POSITIVE or word in NEGATIVE]
        assert found
        assert set(found) == {label == " positive"}


def check_copy_colours(pair: PromptPair) -> None:
    pattern = r"A (\w+) is (\w+)\. What color is a (\w+)\? A\. (\w+) B\. (\w+) C\. (\w+) D\. (\w+) Answer:(?: (\w))?"
    for prompt, last in ((pair.clean, pair.answer), (pair.corrupted, pair.wrong_answer)):
        *examples, (thing, colour, again, *shown, _) = re.findall(pattern, prompt)
        assert thing == again
        assert len(set(shown)) == 4
        assert last == " " + "ABCD"[shown.index(colour)]
        assert len(examples) == 4
        for _, colour, _, *shown, letter in examples:
            assert letter == "ABCD"[shown.index(colour)]
    assert pair.clean.split("What")[-1] == pair.corrupted.split("What")[-1]


def check_arithmetic(pair: PromptPair) -> None:
    for prompt, last in ((pair.clean, pair.answer), (pair.corrupted, pair.wrong_answer)):
        lines = (prompt + last).split("\n")
        assert len(lines) == 5
        for line in lines:
            first, sign, second, result = re.fullmatch(r"(\d) ?([+-]) ?(\d) ?= ?(\d)", line).groups()
            assert int(result) == int(first) + int(second) * {"+": 1, "-": -1}[sign]
    assert pair.clean.rsplit("\n", 1)[0] == pair.corrupted.rsplit("\n", 1)[0]


CHECKS = {
    "greater-than": check_greater_than,
    "facts": check_facts,
    "agreement": check_agreement,
    "induction": check_induction,
    "sentiment": check_sentiment,
    "copy-colours": check_copy_colours,
    "arithmetic": check_arithmetic,
}


def test_groups_are_balanced(words: assay.Model) -> None:
    agreement = assay.tasks.agreement(words, n=16)
    assert [pair.group for pair in agreement].count("attractor") == 8
    for answer in (" is", " are", " was", " were"):
        assert [pair.answer for pair in agreement].count(answer) == 4
    assert [pair.answer for pair in assay.tasks.sentiment(words, n=8)].count(" positive") == 4
    assert [pair.answer for pair in assay.tasks.copy_colours(words, n=8)] == [" A", " B", " C", " D"] * 2
    assert {pair.group for pair in assay.tasks.facts(words, n=5)} == set(RELATIONS)


def test_answers_fit_how_the_tokenizer_reads_numbers(words: assay.Model) -> None:
    assert {len(year) for pair in assay.tasks.greater_than(words) for year in members(pair.answer)} == {2}
    assert all(pair.clean.endswith(" =") for pair in assay.tasks.arithmetic(words))


@real
def test_by_digit_the_answer_is_a_digit(smollm2: assay.Model) -> None:
    assert {len(tens) for pair in assay.tasks.greater_than(smollm2) for tens in members(pair.answer)} == {1}
    assert all(pair.clean.endswith(" = ") for pair in assay.tasks.arithmetic(smollm2))


def test_each_relation_has_enough_entries() -> None:
    assert len(RELATIONS) >= 4
    assert all(len(table) >= 15 for table in RELATIONS.values())


@pytest.mark.parametrize("task", NAMES)
def test_unsuitable_tokenizers_are_refused(task: str, sorter: assay.Model) -> None:
    with pytest.raises(DataError, match=f"sequence-sort|{task}") as refused:
        make_pairs(sorter, task)
    assert task in str(refused.value)
    with pytest.raises(DataError, match=f"without a tokenizer, which the task {task} needs"):
        make_pairs(reader_of(None), task)


def test_unknown_choices_and_too_many_pairs_are_refused(words: assay.Model) -> None:
    with pytest.raises(
        OptionError, match=r"no relation 'capital'\. Did you mean 'country-capital'\? Choose one of country-capital"
    ):
        assay.tasks.facts(words, relation="capital")
    with pytest.raises(OptionError, match="no kind 'word'"):
        assay.tasks.sentiment(words, kind="word")
    with pytest.raises(OptionError, match="no operation 'times'"):
        assay.tasks.arithmetic(words, operation="times")
    with pytest.raises(OptionError, match="length from 4 to 40"):
        assay.tasks.induction(words, length=3)
    few = reader_of(word_tokenizer("The capital of is the city of France Paris Italy Rome"))
    assert len(assay.tasks.facts(few, n=2)) == 2
    with pytest.raises(DataError, match="about 2 different pairs for reader, not 3"):
        assay.tasks.facts(few, n=3)
