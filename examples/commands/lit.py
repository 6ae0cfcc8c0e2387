"""PyTorch Lightning with its own command line: lit.py fit --model.rate=R --model.width=W, and all of LightningCLI's.

Lightning keeps its last checkpoint in the checkpoint folder; `--ckpt_path=last` continues from it.
"""

import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(lightning.LightningDataModule):
    """Images of handwritten digits, 8 x 8, that scikit-learn brings."""

    def setup(self, stage):
        data = load_digits()
        x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
        parts = [1400, len(x) - 1400]
        self.train, self.valid = random_split(TensorDataset(x, y), parts, torch.Generator().manual_seed(0))

    def train_dataloader(self):
        return DataLoader(self.train, 64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.valid, 400)


class Network(lightning.LightningModule):
    """One hidden layer."""

    def __init__(self, rate: float = 1e-3, width: int = 32):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        accuracy = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", accuracy)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(f"epoch={self.current_epoch + 1} accuracy={self.trainer.callback_metrics['accuracy']:.4f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.rate)


if __name__ == "__main__":
    folder = os.environ.get("TRIALPOD_CHECKPOINT_DIR", "checkpoints")
    LightningCLI(
        Network,
        Digits,
        save_config_callback=None,  # trials run at the same time in the same folder
        trainer_defaults={
            "accelerator": "cpu",
            "max_epochs": 8,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [ModelCheckpoint(folder, save_last=True, save_top_k=0)],
        },
    )
