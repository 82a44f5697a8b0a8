"""GIM against other ways to find circuits, by MIB's measures. After arXiv 2505.17630 and arXiv 2504.13151."""

from assay.studies.gim_circuits.measuring import carry_out
from assay.studies.gim_circuits.page import write_page
from assay.studies.gim_circuits.settings import DEFAULT, FULL, Setting, Sizes

__all__ = ["DEFAULT", "FULL", "Setting", "Sizes", "carry_out", "write_page"]
