"""Facts: the object of a relation between two things, as in "The capital of France is" -> " Paris".

The corruption is that of causal tracing in Meng et al. (arXiv 2202.05262), with another subject of the
same relation in the place of noise.
"""

from __future__ import annotations

import random

from assay.data.pairs import PromptPair, PromptPairs
from assay.data.tasks.words import collect, is_one_known_token, known_length, require_choice, require_tokenizer
from assay.errors import DataError
from assay.model import Model


def _table(text: str) -> dict[str, str]:
    return dict(tuple(entry.strip().split(": ")) for entry in text.split(",") if entry.strip())  # type: ignore[misc]


TEMPLATES = {
    "country-capital": "The capital of {subject} is the city of",
    "country-language": "Most people in {subject} speak a language called",
    "company-country": "The company {subject} was founded in the country of",
    "element-symbol": "The chemical symbol for oxygen is O. The chemical symbol for {subject} is",
    "animal-young": "A young horse is called a foal. A young {subject} is called a",
}

RELATIONS: dict[str, dict[str, str]] = {
    "country-capital": _table("""
        France: Paris, Italy: Rome, Spain: Madrid, Germany: Berlin, Japan: Tokyo, China: Beijing, Russia: Moscow,
        Egypt: Cairo, Greece: Athens, Austria: Vienna, Poland: Warsaw, Ireland: Dublin, Portugal: Lisbon,
        Sweden: Stockholm, Norway: Oslo, Denmark: Copenhagen, Finland: Helsinki, Hungary: Budapest, Belgium: Brussels,
        England: London, Scotland: Edinburgh, Turkey: Ankara, Iran: Tehran, Iraq: Baghdad, Syria: Damascus,
        Kenya: Nairobi, Cuba: Havana, Peru: Lima, Canada: Ottawa, Thailand: Bangkok, Lebanon: Beirut, Nepal: Kathmandu,
        Afghanistan: Kabul, Chile: Santiago, Philippines: Manila
    """),
    "country-language": _table("""
        France: French, Italy: Italian, Spain: Spanish, Germany: German, Japan: Japanese, China: Chinese,
        Russia: Russian, Egypt: Arabic, Greece: Greek, Austria: German, Poland: Polish, Portugal: Portuguese,
        Sweden: Swedish, Norway: Norwegian, Denmark: Danish, Finland: Finnish, Hungary: Hungarian, Turkey: Turkish,
        Iran: Persian, Iraq: Arabic, Mexico: Spanish, Brazil: Portuguese, Argentina: Spanish, Chile: Spanish,
        Thailand: Thai, Vietnam: Vietnamese, Australia: English, England: English, Korea: Korean, Israel: Hebrew
    """),
    "company-country": _table("""
        Toyota: Japan, Honda: Japan, Sony: Japan, Nintendo: Japan, Samsung: Korea, Hyundai: Korea, BMW: Germany,
        Siemens: Germany, Volkswagen: Germany, Bosch: Germany, Nokia: Finland, IKEA: Sweden, Volvo: Sweden,
        Ericsson: Sweden, Renault: France, Peugeot: France, Michelin: France, Ferrari: Italy, Fiat: Italy,
        Gucci: Italy, Huawei: China, Alibaba: China, Lenovo: China, Philips: Netherlands, Heineken: Netherlands,
        Lego: Denmark, Nestle: Switzerland, Rolex: Switzerland, Tata: India, Infosys: India, Gazprom: Russia
    """),
    "element-symbol": _table("""
        hydrogen: H, helium: He, lithium: Li, carbon: C, nitrogen: N, fluorine: F, neon: Ne, sodium: Na,
        magnesium: Mg, aluminum: Al, silicon: Si, phosphorus: P, sulfur: S, chlorine: Cl, potassium: K, calcium: Ca,
        titanium: Ti, iron: Fe, cobalt: Co, nickel: Ni, copper: Cu, zinc: Zn, silver: Ag, tin: Sn, gold: Au,
        mercury: Hg, lead: Pb, uranium: U, iodine: I, platinum: Pt, argon: Ar, manganese: Mn
    """),
    "animal-young": _table("""
        dog: puppy, cat: kitten, cow: calf, sheep: lamb, lion: cub, bear: cub, tiger: cub, wolf: pup, seal: pup,
        elephant: calf, whale: calf, deer: fawn, chicken: chick, hen: chick, goat: kid, fox: kit, rabbit: kit,
        frog: tadpole, human: baby, man: boy, woman: girl, fish: fry, butterfly: caterpillar
    """),
}
"""Relation, subject, object: written for this project, unambiguous ones only."""


def facts(model: Model, n: int = 16, seed: int = 0, relation: str = "all") -> PromptPairs:
    """``n`` pairs: the object of a subject, against that of another subject of the same relation.

    The corrupted prompt is about the other subject, which has as many tokens. The wrong answer is its object.

    Args:
        relation: one of ``country-capital``, ``country-language``, ``company-country``, ``element-symbol`` and
            ``animal-young``, or ``all``: each in turn, without those of which the tokenizer leaves nothing.

    Raises:
        DataError: too few objects are one token for this tokenizer, or too few subjects are equally long.
        OptionError: an unknown relation.
    """
    require_choice("facts", "relation", relation, (*RELATIONS, "all"))
    choices = {name: _partners(model, name) for name in (RELATIONS if relation == "all" else (relation,))}
    usable = {name: found for name, found in choices.items() if found}
    if not usable:
        raise DataError(
            f"The tokenizer of {model.name} knows no two subjects of {' or '.join(choices)} that are equally long and "
            "whose objects are single tokens, which facts needs. `assay list tasks` shows the other tasks."
        )
    draw = random.Random(seed)
    names = list(usable)

    def make(number: int) -> PromptPair:
        name = names[number % len(names)]
        subject = draw.choice(list(usable[name]))
        other = draw.choice(usable[name][subject])
        clean, corrupted = (TEMPLATES[name].format(subject=each) for each in (subject, other))
        answer, wrong = (f" {RELATIONS[name][each]}" for each in (subject, other))
        return PromptPair(clean, corrupted, answer, wrong, group=name)

    pairs = collect(model, "facts", n, make)
    return PromptPairs(pairs, task="facts", metric="logit-diff", options={"relation": relation})


def _partners(model: Model, relation: str) -> dict[str, list[str]]:
    """For each subject, those of equal token length with another object; subjects without any are left out."""
    tokenizer = require_tokenizer(model, "facts")
    table = {s: o for s, o in RELATIONS[relation].items() if is_one_known_token(tokenizer, f" {o}")}
    length = {s: known_length(tokenizer, TEMPLATES[relation].format(subject=s)) for s in table}
    known = [s for s in table if length[s] is not None]
    found = {s: [other for other in known if length[other] == length[s] and table[other] != table[s]] for s in known}
    return {s: others for s, others in found.items() if others}
