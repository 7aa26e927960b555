"""What the benchmarks that train share: arguments of a trainer that reports its loss and saves nothing."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import MultiVectorEncoderTrainingArguments

__all__ = ["training_arguments"]


def training_arguments(folder: str, **changes: Any) -> MultiVectorEncoderTrainingArguments:
    return MultiVectorEncoderTrainingArguments(
        output_dir=folder,
        bf16=True,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
        **changes,
    )
