"""How far a score can be trusted: reliability, error bounds, calibrated intervals, screening.

Arrays in, arrays out: nothing here knows of models.
"""

from assay.reliability.bounds import bound_estimate, violation_rate
from assay.reliability.calibration import Calibration, smallest_sample
from assay.reliability.estimates import Estimates
from assay.reliability.prompts import bootstrap_mean
from assay.reliability.score import flagged, floor_of, mean_reliability, reliability
from assay.reliability.screening import Screening, exhaustion_is_cheaper, screen
from assay.reliability.sign_flips import sign_flip_interval

__all__ = [
    "Calibration",
    "Estimates",
    "Screening",
    "bootstrap_mean",
    "bound_estimate",
    "exhaustion_is_cheaper",
    "flagged",
    "floor_of",
    "mean_reliability",
    "reliability",
    "screen",
    "sign_flip_interval",
    "smallest_sample",
    "violation_rate",
]
