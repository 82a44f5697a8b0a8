"""What it would take to ask a model, foreseen from its configuration alone."""

from assay.planning.plan import DEFAULT_HOURS, DEFAULT_METHODS, Line, Plan, plan

__all__ = ["DEFAULT_HOURS", "DEFAULT_METHODS", "Line", "Plan", "plan"]
