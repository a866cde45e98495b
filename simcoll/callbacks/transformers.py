"""Hugging Face Transformers: ``Trainer(callbacks=[StepCallback()])`` marks each of the trainer's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.recorder.steps import step

if TYPE_CHECKING:
    _TrainerCallback = object
else:
    from transformers import TrainerCallback as _TrainerCallback


class StepCallback(_TrainerCallback):
    """Marks the end of each training step, after the batches whose gradients it accumulates."""

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        """Mark the step."""
        step()
