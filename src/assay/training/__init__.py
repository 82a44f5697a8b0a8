"""Training of small sequence models, with checkpoints on the way."""

from assay.training.checkpoints import Checkpoint, read_checkpoints
from assay.training.setting import TrainingSetting, training_setting
from assay.training.training import train

__all__ = ["Checkpoint", "TrainingSetting", "read_checkpoints", "train", "training_setting"]
