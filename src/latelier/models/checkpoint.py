"""The files of a checkpoint, in a folder or on the hub: its settings and the tensors of its weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import safe_open

if TYPE_CHECKING:
    from torch import Tensor

_PLACE = ("token", "cache_folder", "revision", "local_files_only")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")


class TensorHeader(NamedTuple):
    """The shape of a tensor in a file, and its dtype as the format writes it, such as ``"F32"`` or ``"int8"``."""

    shape: tuple[int, ...]
    dtype: str


class Checkpoint:
    """The files of a model, in a folder or on the hub.

    `options`: those of sentence-transformers' loader, of which those that say where the files are are read.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.options = options
        self.place: Any = {key: options.get(key) for key in _PLACE} | {
            "local_files_only": bool(options.get("local_files_only"))
        }

    def path(self, file: str, folder: str = "") -> str | None:
        """Return where a file is, downloaded if need be; None if there is none."""
        from sentence_transformers.util import load_file_path  # takes seconds, with torch

        return load_file_path(self.name, file, subfolder=folder, **self.place)

    def read(self, file: str, folder: str = "") -> dict[str, Any]:
        """Return the settings in a JSON file; none where there is none. A setting that is null is absent."""
        path = self.path(file, folder)
        if path is None:
            content = {}
        else:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        return {key: value for key, value in content.items() if value is not None}

    def modules(self) -> list[dict[str, Any]]:
        """Return the modules that the checkpoint lists; none where it has no list."""
        path = self.path("modules.json")
        if path is None:
            return []
        return list(json.loads(Path(path).read_text(encoding="utf-8")))

    def shapes(self, folder: str = "", files: Sequence[str] = WEIGHTS) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor in the weights of a folder; none where it has none."""
        return {name: shape for name, (shape, _) in self.headers(folder, files).items()}

    def headers(self, folder: str = "", files: Sequence[str] = WEIGHTS) -> dict[str, TensorHeader]:
        """Return shape and dtype of each tensor in the weights of a folder; none where it has none."""
        headers: dict[str, TensorHeader] = {}
        for path in self._files_of_weights(folder, files):
            if path.endswith(".safetensors"):
                with safe_open(path, framework="pt") as file:
                    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                    headers |= {
                        name: TensorHeader(tuple(each.get_shape()), each.get_dtype()) for name, each in slices.items()
                    }
            else:
                import torch

                tensors = torch.load(path, map_location="cpu", weights_only=True)
                headers |= {
                    name: TensorHeader(tuple(each.shape), str(each.dtype).removeprefix("torch."))
                    for name, each in tensors.items()
                    if isinstance(each, torch.Tensor)
                }
        return headers

    def tensors(self, names: Collection[str], folder: str = "", files: Sequence[str] = WEIGHTS) -> dict[str, Tensor]:
        """Return the tensors of these names in the weights of a folder."""
        tensors: dict[str, Tensor] = {}
        for path in self._files_of_weights(folder, files):
            if path.endswith(".safetensors"):
                with safe_open(path, framework="pt") as file:
                    tensors |= {name: file.get_tensor(name) for name in file.keys() if name in names}  # noqa: SIM118
            else:
                import torch

                saved = torch.load(path, map_location="cpu", weights_only=True)
                tensors |= {name: tensor for name, tensor in saved.items() if name in names}
        return tensors

    def _files_of_weights(self, folder: str, files: Sequence[str]) -> list[str]:
        for file in files:
            path = self.path(file, folder)
            if path is not None:
                return [path]
            shards = set(self.read(f"{file}.index.json", folder).get("weight_map", {}).values())
            if shards:
                return [path for shard in sorted(shards) if (path := self.path(shard, folder)) is not None]
        return []
