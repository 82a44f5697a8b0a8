"""GIM against other token attributions: whose first tokens does the model need? After arXiv 2505.17630."""

from assay.studies.gim_tokens.measuring import carry_out
from assay.studies.gim_tokens.page import write_page
from assay.studies.gim_tokens.settings import DEFAULT, FULL, Setting, Sizes

__all__ = ["DEFAULT", "FULL", "Setting", "Sizes", "carry_out", "write_page"]
