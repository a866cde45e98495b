"""Callbacks of frameworks mark the optimizer's steps, not the batches whose gradients are accumulated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from simcoll.backends.threaded.run import run_threaded


def steps_marked(train: Callable[[], None]) -> int:
    """The number of steps that one rank marks."""
    outcome = run_threaded(1, lambda rank: train())
    assert outcome.ok, outcome.exceptions
    assert outcome.report.summary is not None
    return sum(one.number for one in outcome.report.summary.steps)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_lightning() -> None:
    lightning = pytest.importorskip(
        "lightning", reason="lightning is not installed (the dependency group frameworks has it)"
    )
    from simcoll.callbacks.lightning import StepCallback

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def train() -> None:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            accumulate_grad_batches=2,
            callbacks=[StepCallback()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=1))

    assert steps_marked(train) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_transformers(tmp_path) -> None:
    reason = "transformers is not installed (the dependency group frameworks has it)"
    transformers = pytest.importorskip("transformers", reason=reason)
    from simcoll.callbacks.transformers import StepCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": (self.layer(x)[:, 0] - labels).pow(2).mean()}

    def train() -> None:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=3,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(24)]
        transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[StepCallback()]).train()

    assert steps_marked(train) == 3


@pytest.mark.slow
def test_accelerate_through_its_optimizer() -> None:
    reason = "accelerate is not installed (the dependency group frameworks has it)"
    accelerate = pytest.importorskip("accelerate", reason=reason)
    import simcoll

    def train() -> None:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=1)
        )
        simcoll.mark_steps(optimizer)
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).sum())
                optimizer.step()
                optimizer.zero_grad()

    assert steps_marked(train) == 4
