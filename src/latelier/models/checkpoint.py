"""The files of a checkpoint, in a folder or on the hub: its settings and the tensors of its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import safe_open

from latelier.errors import ModelLoadError
from latelier.utils.checks import short

if TYPE_CHECKING:
    from torch import Tensor

_PLACE = ("token", "cache_folder", "revision", "local_files_only")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
# What files of weights are called, whole or in parts.
_ANY_WEIGHTS = re.compile(r".*\.safetensors|(pytorch_|adapter_)?model([.-].*)?\.bin", re.ASCII)


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
        content = self._read(file, folder, {})
        if not isinstance(content, dict):
            raise self._other_contents(file, folder, content, "an object of settings")
        return {key: value for key, value in content.items() if value is not None}

    def modules(self) -> list[dict[str, Any]]:
        """Return the modules that the checkpoint lists, each with its type; none where it has no list."""
        content = self._read("modules.json", "", [])
        if not isinstance(content, list) or not all(
            isinstance(each, dict) and isinstance(each.get("type"), str) for each in content
        ):
            raise self._other_contents("modules.json", "", content, "a list of modules, each with its type")
        return content

    def encoder_folder(self) -> str:
        """Return the folder of the encoder, the first module of the list; that of the checkpoint without a list."""
        return str(next(iter(self.modules()), {}).get("path") or "")

    def _read(self, file: str, folder: str, absent: Any) -> Any:
        path = self.path(file, folder)
        if path is None:
            return absent
        return json.loads(Path(path).read_text(encoding="utf-8"))

    def _other_contents(self, file: str, folder: str, content: Any, expected: str) -> ModelLoadError:
        place = f"{folder}/{file}" if folder else file
        return ModelLoadError(
            self.name,
            ValueError(f"{place} holds {short(content)} ({type(content).__name__}), and not {expected}."),
            cure="Copy the whole model again.",
        )

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
                headers |= {
                    name: TensorHeader(tuple(each.shape), str(each.dtype).removeprefix("torch."))
                    for name, each in self.pickled(Path(path).name, folder).items()
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
                saved = self.pickled(Path(path).name, folder)
                tensors |= {name: tensor for name, tensor in saved.items() if name in names}
        return tensors

    def pickled(self, file: str, folder: str = "") -> dict[str, Tensor]:
        """Return the tensors in a pickle, of which nothing else is read; none where there is no such file."""
        import torch

        path = self.path(file, folder)
        if path is None:
            return {}
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not all(isinstance(each, torch.Tensor) for each in content.values()):
            raise self._other_contents(file, folder, content, "tensors by their names")
        return content

    def weights_in(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Return the files of weights in a folder that are read, and those on this machine that stand beside them."""
        if self.path("adapter_config.json", folder) is not None:  # which names the weights that it adapts
            files = ADAPTER
        else:
            files = WEIGHTS
        read = sorted(Path(path).name for path in self._files_of_weights(folder, files))
        found = sorted(path.name for path in Path(self.name, folder).glob("*"))
        return read, [name for name in found if _ANY_WEIGHTS.fullmatch(name) and name not in read]

    def _files_of_weights(self, folder: str, files: Sequence[str]) -> list[str]:
        for file in files:
            path = self.path(file, folder)
            if path is not None:
                return [path]
            shards = self._shards(f"{file}.index.json", folder)
            if shards:
                return [path for shard in sorted(shards) if (path := self.path(shard, folder)) is not None]
        return []

    def _shards(self, file: str, folder: str) -> set[str]:
        places = self.read(file, folder).get("weight_map", {})
        if not isinstance(places, dict):
            raise self._other_contents(file, folder, places, "the files of tensors by their names")
        return set(map(str, places.values()))
