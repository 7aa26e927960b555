"""`TrainingReport`: what `train` returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from latelier.utils.misc import bar, fragment, table

__all__ = ["TrainingReport"]


@dataclass(frozen=True)
class TrainingReport:
    """What was trained, and the measures before and after; prints as a table.

    Parameters
    ----------
    model
        Folder of the saved model.
    rows
        Rows that were trained on.
    steps
        Steps of the optimiser.
    validation_queries
        Number of validation queries; 0: there were none.
    before, after
        Measure (``"success@1"``, ``"ndcg@10"``) to value on the validation queries; empty without them.

    Examples
    --------
    >>> before, after = {"ndcg@10": 0.8}, {"ndcg@10": 0.9}
    >>> print(TrainingReport(Path("my-model"), 1800, 57, 200, before, after))
    my-model: trained on 1,800 rows, 57 steps.
      ndcg@10      0.800 before, 0.900 after, on 200 queries
    """

    model: Path
    rows: int
    steps: int
    validation_queries: int
    before: dict[str, float]
    after: dict[str, float]

    def __str__(self) -> str:
        lines = [f"{self.model}: trained on {self.rows:,} rows, {self.steps:,} steps."]
        for name, value in self.before.items():
            lines.append(
                f"  {name:12} {value:.3f} before, {self.after[name]:.3f} after, on {self.validation_queries} queries"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title = f"{self.model}: trained on {self.rows:,} rows, {self.steps:,} steps"
        rows = [
            (name, bar(f"{value:.3f}", value), bar(f"{self.after[name]:.3f}", self.after[name]))
            for name, value in self.before.items()
        ]
        if not rows:
            return fragment(title)
        caption = f"{title}; measured on {self.validation_queries:,} queries"
        return fragment(table(["measure", "before", "after"], rows, caption=caption))
