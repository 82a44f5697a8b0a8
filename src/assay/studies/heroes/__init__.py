"""Hidden heroes and gradient bloats: does a gradient tell what matters? After arXiv 2602.01442."""

from assay.studies.heroes.measuring import carry_out
from assay.studies.heroes.page import write_page
from assay.studies.heroes.settings import DEFAULT, FULL, Setting, Sizes

__all__ = ["DEFAULT", "FULL", "Setting", "Sizes", "carry_out", "write_page"]
