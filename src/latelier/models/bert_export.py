"""Exports a dense BERT model in int8 without torch, whose import and tracing take longer than encoding a small folder.

BERT is plain enough to be written down as a graph. A checkpoint with anything that is not known here is left to
`latelier.models.onnx_export`, which traces what torch computes.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.models.arguments import DEFAULT_DOCUMENT_LENGTH
from latelier.models.exported_encoder import (
    GRAPH_FILE,
    INPUTS,
    TOKENIZER_FILE,
    is_own,
    is_whole,
    quantize_int8,
    write_folder,
)
from latelier.models.location import HEAD_FILES
from latelier.utils import resolve_length
from latelier.utils.files import cache_folder, parse_json

# Part of each export's fingerprint: raise it when the files of the same checkpoint would be others.
_VERSION = 1
_OPSET = 20
_IR_VERSION = 10
_FILES = ("config.json", "modules.json", "sentence_bert_config.json", "tokenizer_config.json")
_WEIGHTS = "model.safetensors"
_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
# Of config.json: what the graph computes. Other settings are of training, of decoding, or sizes that it reads.
_ARCHITECTURE = {
    "architectures": (["BertModel"],),
    "hidden_act": ("gelu",),
    "model_type": ("bert",),
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "quantization_config": (None,),
    "auto_map": (None,),
}
# Of each layer, with a weight and a bias.
_PARTS = (
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
# Of config_sentence_transformers.json: none says anything about vectors, if there are no prompts.
_OF_MODEL = {"__version__", "prompts", "default_prompt_name", "similarity_fn_name", "model_type"}
_LENGTHS = ("max_length_query", "max_length_document")

logger = logging.getLogger(__name__)


def export_int8(checkpoint: Path, lengths: Mapping[str, int | None]) -> Path | None:
    """Return the folder of the int8 export of a dense BERT model, made if there is none; None for other models.

    Its vectors are those of `ColBERT.from_dense` and `latelier.models.onnx_export.export`, up to what differs where
    numbers are rounded to 8 bits. `checkpoint`: a folder with a model of sentence-transformers. `lengths`:
    ``max_length_query`` and ``max_length_document``, as for `ColBERT`.
    """
    settings = _read_settings(checkpoint)
    if settings is None:
        return None
    digest = hashlib.sha256(repr((_VERSION, sorted(lengths.items()))).encode())
    for name in (*_FILES, TOKENIZER_FILE, _WEIGHTS):
        digest.update(hashlib.sha256((checkpoint / name).read_bytes()).digest())
    fingerprint = digest.hexdigest()[:32]
    folder = cache_folder() / "onnx" / f"{fingerprint}-int8"
    if is_own(folder) and is_whole(folder):
        return folder
    config = settings["config.json"]
    logger.info("exporting %s to ONNX, which is done once", checkpoint.name)

    def write(target: Path) -> dict[str, Any]:
        with TemporaryDirectory(dir=target.parent) as unquantised:
            write_graph(checkpoint, config, Path(unquantised))
            quantize_int8(Path(unquantised), target)
        shutil.copyfile(checkpoint / TOKENIZER_FILE, target / TOKENIZER_FILE)
        return {"fingerprint": fingerprint, "compute_dtype": "int8", "heads": [], **_describe(settings, lengths)}

    write_folder(folder, write)
    return folder


def _read_settings(checkpoint: Path) -> dict[str, Any] | None:
    """Return the settings of a checkpoint by the names of their files; None if there is one that is not known here."""
    if not all((checkpoint / name).is_file() for name in (*_FILES, TOKENIZER_FILE, _WEIGHTS)):
        return None
    if any((checkpoint / name).exists() for name in ("adapter_config.json", *HEAD_FILES)):
        return None
    settings = {name: parse_json((checkpoint / name).read_text(encoding="utf-8")) for name in _FILES}
    of_model = checkpoint / "config_sentence_transformers.json"
    named = parse_json(of_model.read_text(encoding="utf-8")) if of_model.is_file() else {}
    if not set(named) <= _OF_MODEL or named.get("default_prompt_name") or any((named.get("prompts") or {}).values()):
        return None
    modules = settings["modules.json"]
    config = settings["config.json"]
    is_known = (
        [str(module["type"]).rpartition(".")[2] for module in modules] in _MODULES
        and modules[0]["path"] == ""
        and all(config.get(name) in values for name, values in _ARCHITECTURE.items())
        and _holds_tensors(checkpoint / _WEIGHTS, config["num_hidden_layers"])
        and set(settings["sentence_bert_config.json"]) <= {"max_seq_length", "do_lower_case"}
        and not settings["sentence_bert_config.json"].get("do_lower_case")
        and settings["tokenizer_config.json"].get("tokenizer_class") in ("BertTokenizer", "BertTokenizerFast")
        and settings["tokenizer_config.json"].get("truncation_side", "right") == "right"
        and settings["tokenizer_config.json"].get("padding_side", "right") == "right"
    )
    return settings if is_known else None


def _holds_tensors(path: Path, layers: int) -> bool:
    """Whether a file holds what the graph takes, and beside it the pooler and the positions' numbers alone."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        held = {name.removeprefix("bert.") for name in file.keys()}  # noqa: SIM118 (no mapping)
    held -= {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}
    inner = {f"encoder.layer.{i}.{part}" for i in range(layers) for part in _PARTS}
    ends = {f"{part}.{end}" for part in (*inner, "embeddings.LayerNorm") for end in ("weight", "bias")}
    return held == ends | {f"embeddings.{each}_embeddings.weight" for each in ("word", "position", "token_type")}


def _describe(settings: Mapping[str, Any], lengths: Mapping[str, int | None]) -> dict[str, Any]:
    """Return what `latelier.models.onnx_export` says of the late-interaction model that `ColBERT.from_dense` makes."""
    config = settings["config.json"]
    limit = config["max_position_embeddings"]
    defaults = {"query": limit, "document": DEFAULT_DOCUMENT_LENGTH}
    described: dict[str, Any] = {
        "dim": config["hidden_size"],
        "longest_query": limit,
        "pad_id": config["pad_token_id"],
        "truncation_side": "right",
        "normalizes": True,
        "similarity_fn_name": "maxsim",
    }
    for task, default in defaults.items():
        name = f"max_length_{task}"
        described[task] = {
            "prompt": "",
            "max_length": resolve_length(name, lengths.get(name), default, limit),
            "expansion": None,
            "skipped": [],
            "kept": None,
            "inserted": None,
        }
    return described


def write_graph(checkpoint: Path, config: Mapping[str, Any], folder: Path) -> None:
    """Write `BertModel` of transformers, from token ids to the last hidden state, in float32.

    Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019.
    """
    import onnx
    from safetensors.numpy import load_file

    stored = load_file(str(checkpoint / _WEIGHTS))
    weights = {name.removeprefix("bert."): np.float32(each) for name, each in stored.items()}
    if not all(np.isfinite(each).all() for each in weights.values()):
        raise InvalidArgumentError("the weights hold numbers that are not finite.")
    graph = _Graph(weights, config["layer_norm_eps"])
    words = graph.add("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    types = graph.add("Gather", graph.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
    length = graph.add("Squeeze", graph.add("Shape", "input_ids", start=1, end=2))
    numbers = graph.add("Range", graph.constant(np.int64(0)), length, graph.constant(np.int64(1)))
    positions = graph.add("Gather", graph.weight("embeddings.position_embeddings.weight"), numbers)
    mask = graph.add("Cast", "attention_mask", to=onnx.TensorProto.INT32)
    hidden = graph.norm(graph.add("Add", graph.add("Add", words, types), positions), "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        parts = [graph.linear(hidden, f"{layer}.attention.self.{part}") for part in ("query", "key", "value")]
        heads = {"num_heads": config["num_attention_heads"]}
        attended = graph.add("MultiHeadAttention", *parts, "", mask, domain="com.microsoft", **heads)
        attended = graph.add("Add", graph.linear(attended, f"{layer}.attention.output.dense"), hidden)
        hidden = graph.norm(attended, f"{layer}.attention.output.LayerNorm")
        inner = graph.add("Gelu", graph.linear(hidden, f"{layer}.intermediate.dense"))
        hidden = graph.norm(
            graph.add("Add", graph.linear(inner, f"{layer}.output.dense"), hidden), f"{layer}.output.LayerNorm"
        )
    graph.save(hidden, folder / GRAPH_FILE)


class _Graph:
    """The operators of a graph, each named after its output."""

    def __init__(self, weights: Mapping[str, np.ndarray], epsilon: float) -> None:
        self._weights = weights
        self._epsilon = epsilon
        self._nodes: list[Any] = []
        self._tensors: dict[str, Any] = {}

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operator, and return the name of its output."""
        from onnx import helper

        output = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], output, domain=domain, **attributes))
        return output

    def constant(self, value: np.ndarray | np.generic, name: str = "") -> str:
        """Add a number or an array, and return its name."""
        from onnx import numpy_helper

        name = name or f"constant_{len(self._tensors)}"
        self._tensors[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def weight(self, name: str) -> str:
        """Add a weight of the checkpoint."""
        return self.constant(self._weights[name], name)

    def linear(self, rows: str, name: str) -> str:
        """Multiply rows by a weight, ``(out, in)``, and add its bias."""
        weight = self.constant(np.ascontiguousarray(self._weights[f"{name}.weight"].T), f"{name}.weight")
        return self.add("Add", self.add("MatMul", rows, weight), self.weight(f"{name}.bias"))

    def norm(self, rows: str, name: str) -> str:
        """Normalise rows to mean 0 and variance 1, and scale them."""
        scale = self.weight(f"{name}.weight")
        return self.add("LayerNormalization", rows, scale, self.weight(f"{name}.bias"), axis=-1, epsilon=self._epsilon)

    def save(self, output: str, path: Path) -> None:
        """Write the graph, with its weights in a file beside it."""
        import onnx
        from onnx import TensorProto, helper

        from latelier.models.exported_encoder import WEIGHTS_FILE

        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"]) for name in INPUTS]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", "length", "dim"])]
        graph = helper.make_graph(self._nodes, "bert", inputs, outputs, list(self._tensors.values()))
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        onnx.save_model(model, str(path), save_as_external_data=True, location=WEIGHTS_FILE)
