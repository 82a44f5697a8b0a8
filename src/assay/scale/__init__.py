"""Who carries out the parts of a run: this process, several on this machine, or a Ray cluster."""

from assay.scale.crew import Crew
from assay.scale.executor import Advance, Executor, InProcess, Workshop
from assay.scale.local import LocalProcesses
from assay.scale.ray import RayCluster

__all__ = ["Advance", "Crew", "Executor", "InProcess", "LocalProcesses", "RayCluster", "Workshop"]
