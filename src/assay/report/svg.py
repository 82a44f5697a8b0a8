"""Elements of SVG, with everything escaped."""

from __future__ import annotations

from markupsafe import Markup

_OPEN, _CLOSED, _ATTRIBUTE = Markup("<{}{}>{}</{}>"), Markup("<{}{}/>"), Markup(' {}="{}"')


def element(tag: str, *inside: Markup | str, **attributes: str | float | None) -> Markup:
    """An element. Of attributes, ``class_`` is class, an underscore is a hyphen, None is left out."""
    given = Markup("").join(
        _ATTRIBUTE.format(name.rstrip("_").replace("_", "-"), written(value))
        for name, value in attributes.items()
        if value is not None
    )
    return _OPEN.format(tag, given, Markup("").join(inside), tag) if inside else _CLOSED.format(tag, given)


def text(x: float, y: float, words: str, anchor: str, class_: str | None = None) -> Markup:
    """Words at a place; ``anchor``: the side of them that is there (start, middle, end)."""
    return element("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def upright(x: float, y: float, words: str, class_: str | None = None) -> Markup:
    """Words that read from below upwards, with their middle at a place."""
    place = f"translate({written(x)} {written(y)}) rotate(-90)"
    return element("text", words, transform=place, text_anchor="middle", class_=class_)


def path(*steps: str | float, class_: str | None = None, **attributes: str | float | None) -> Markup:
    """A path of commands and numbers."""
    return element("path", d=" ".join(map(written, steps)), class_=class_, **attributes)


def written(value: str | float) -> str:
    """Numbers to a hundredth, which is finer than a screen."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
