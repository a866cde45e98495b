"""Lightning: ``Trainer(callbacks=[StepCallback()])`` marks a step each time that the optimizers have stepped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from simcoll.recorder.steps import step

if TYPE_CHECKING:
    _Callback = object
elif "pytorch_lightning" in sys.modules:
    from pytorch_lightning import Callback as _Callback
else:
    from lightning.pytorch import Callback as _Callback


class StepCallback(_Callback):
    """Marks the end of a training step where ``trainer.global_step`` has grown: not while gradients are accumulated.

    Works with ``lightning``, and with ``pytorch_lightning`` where that was imported before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: object) -> None:
        """Start from the trainer's own number: that of a checkpoint, or 0."""
        self._seen = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: object, *_: object) -> None:
        """Mark a step if an optimizer has stepped in this batch."""
        if trainer.global_step > self._seen:
            self._seen = trainer.global_step
            step()
