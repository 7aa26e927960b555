"""Draw what `training_proof.py` wrote: the loss, and success on training queries that were held out.

To draw it: ``python benchmarks/training_curve.py proof.json docs/assets/training-curve.svg``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt


def draw(results: dict, target: Path) -> None:
    training = results["training"]
    points, loss = training["curve"], training["loss"]
    plt.rcParams.update({"svg.hashsalt": "latelier", "svg.fonttype": "none", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
    left.plot([step for step, _ in loss], [float(value) for _, value in loss], color="#3f51b5", linewidth=1)
    left.set(xlabel="steps", ylabel="loss", ylim=(0, None))
    right.plot(
        [point["step"] for point in points],
        [point["Success@1 of candidates"] for point in points],
        color="#3f51b5",
        marker="o",
        markersize=3,
    )
    right.set(xlabel="steps", ylabel="success@1, held out")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
