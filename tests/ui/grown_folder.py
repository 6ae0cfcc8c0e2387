"""The folder of experiments that most tests look at, and its server."""

from __future__ import annotations

from pathlib import Path

from real_experiments import GrownExperiment, grow_population, grow_tradeoff
from served_page import ServedPage


class Grown:
    """Experiments in one folder, and the server that shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digits = GrownExperiment(folder / "digits", 60)
        self.population = grow_population(folder / "population")
        self.markup = GrownExperiment(folder / "markup", 40, markup=True)
        self.tradeoff = grow_tradeoff(folder / "tradeoff")
        self.page = ServedPage(folder)
        self.cookie = self.page.cookie()

    def trial(self, number: int) -> str:
        return self.digits.trials[number]
