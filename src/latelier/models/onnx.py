"""Export to ONNX and the choice of a CPU backend.

torch's exporter writes what the transformer computes. Its attention is written as one operator of ONNX Runtime, where
transformers lets the attention be replaced: as torch's own attention it is a dozen operators, which take half of the
time of a short query.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from math import log
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from safetensors.torch import save
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask
from transformers.modeling_outputs import BaseModelOutput

from latelier.errors import InvalidArgumentError, LatelierError, MissingExtraError, StorageError
from latelier.kernels.threads import allowed_threads, for_each
from latelier.models.cpu.fingerprint import Fingerprint
from latelier.models.cpu.forwards import patched_forwards
from latelier.models.cpu.held_threads import held_threads, runs_in_threads
from latelier.models.cpu.module_tree import ModuleTree, submodules
from latelier.models.cpu.patching import PatchedForward, replaced_forwards
from latelier.models.exported import (
    ACTIVATIONS,
    DESCRIPTION_FILE,
    GRAPH_FILE,
    HEADS_FILE,
    INPUTS,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    OnnxEncoder,
    is_own,
    is_whole,
    write_folder,
)
from latelier.utils.checks import check_choice
from latelier.utils.files import as_path, cache_folder, replaced

__all__ = [
    "EXPORT_DTYPES",
    "EXPORT_VERSION",
    "check_backend",
    "cpu_forwards",
    "encoder_fingerprint",
    "export",
    "export_float32",
    "exported_session",
    "has_adapters",
    "known_fingerprint",
    "onnx_forward",
    "quantize_int8",
    "stored_export",
]

# Part of each export's fingerprint: raise it when the files of the same weights would be others.
EXPORT_VERSION = 2
_ATTENTION = "latelier_onnx"
_OUTPUT = "last_hidden_state"
# Of normalised token vectors, in any of their numbers.
_TOLERANCE = 1e-5
# (texts, tokens) that an export is compared with the transformer on. Tracing uses the second.
_SHAPES = ((1, 9), (3, 17), (2, 70))


def export_float32(encoder: nn.Module, folder: Path) -> None:
    """Write `GRAPH_FILE` and `WEIGHTS_FILE` of a transformer, and compare them with it.

    `encoder`: the transformer: its forward takes the inputs `INPUTS` or some of them, and returns a
    ``last_hidden_state``. It is copied, in float32, and not changed. `folder`: where to write; it must exist. Raises
    `LatelierError` if the transformer cannot be exported, or its export computes something else.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Exporting to ONNX", "onnx") from error
    plain = copy.deepcopy(encoder).to("cpu", torch.float32).eval()
    fused = _with_fused_attention(plain)
    failure: Exception | None = None
    for each in [plain] if fused is None else [fused, plain]:
        try:
            _trace(each, folder / GRAPH_FILE)
            _compare(plain, folder)
            return
        except Exception as error:  # noqa: BLE001 (torch's exporter raises errors of many classes)
            failure = error
    raise LatelierError(
        f"{type(encoder).__name__} cannot be exported to ONNX: {str(failure).strip() or type(failure).__name__:.300} "
        'Encode with backend="torch".'
    ) from failure


def quantize_int8(source: Path, folder: Path) -> None:
    """Write an export whose products with weights are of int8: one scale per column of weights, and one per input.

    Weights have 7 bits: without VNNI instructions, x86 adds two products in 16 bits, which 8 bits overflow. `source`:
    folder of the float32 export. `folder`: where to write; it must exist.
    """
    try:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise MissingExtraError("Exporting to ONNX", "onnx") from error
    # onnx refuses files with several hard links, as the weights of an exported encoder have.
    copied = folder / "float32"
    copied.mkdir()
    for name in (GRAPH_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, copied / name)
    with _quietly():
        quantize_dynamic(
            str(copied / GRAPH_FILE),
            str(folder / GRAPH_FILE),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},  # products with weights, not those of attention
        )
    shutil.rmtree(copied)
    model = onnx.load(str(folder / GRAPH_FILE))
    (folder / GRAPH_FILE).unlink()
    onnx.save_model(model, str(folder / GRAPH_FILE), save_as_external_data=True, location=WEIGHTS_FILE)


class _LastHiddenState(nn.Module):
    """A transformer with `INPUTS` as its positional arguments and one output."""

    def __init__(self, encoder: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(**dict(zip(self.names, inputs, strict=True)), return_dict=True).last_hidden_state
        return hidden


def _trace(encoder: Any, path: Path) -> None:
    names = _input_names(encoder)
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), _quietly():
        program: Any = torch.onnx.export(
            _LastHiddenState(encoder, names).eval(),
            _example(encoder, *_SHAPES[1]),
            dynamo=True,
            dynamic_shapes=(tuple(dynamic for _ in names),),
            input_names=list(names),
            output_names=[_OUTPUT],
            verbose=False,
        )
    for node in program.model.graph:
        node.metadata_props.clear()  # the lines of Python that each operator came from
    program.save(str(path), external_data=True)  # weights go to `WEIGHTS_FILE`


def _compare(encoder: Any, folder: Path) -> None:
    """Raise an error if normalised token vectors differ between an export and the transformer."""
    session = OnnxEncoder(folder)
    for shape in _SHAPES:
        inputs = _example(encoder, *shape)
        named = dict(zip(_input_names(encoder), inputs, strict=True))
        with torch.no_grad():
            expected = encoder(**named).last_hidden_state
        arrays = {name: each.numpy() for name, each in named.items()}
        computed = session.run(*(arrays.get(name) for name in INPUTS))  # type: ignore[arg-type]
        used = named["attention_mask"].bool()
        pair = (torch.from_numpy(computed)[used], expected[used])
        left, right = (nn.functional.normalize(each, dim=-1) for each in pair)
        difference = (left - right).abs().max().item()
        if not difference <= _TOLERANCE:
            raise LatelierError(f"the exported vectors differ by {difference:.1e}.")


def _example(encoder: Any, n: int, length: int) -> tuple[Tensor, ...]:
    """Return inputs of `n` texts of random tokens, all but the first of them padded."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, encoder.config.vocab_size, (n, length), generator=generator)
    mask = (torch.arange(length) < length - torch.arange(n)[:, None] * 3).long()
    known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return tuple(known[name] for name in _input_names(encoder))


def _input_names(encoder: nn.Module) -> tuple[str, ...]:
    parameters = inspect.signature(encoder.forward).parameters
    return tuple(name for name in INPUTS if name in parameters)


def _with_fused_attention(encoder: nn.Module) -> nn.Module | None:
    """Return a copy whose attention is traced as one operator; None if transformers cannot replace its attention."""
    if not isinstance(encoder, PreTrainedModel) or not encoder._can_set_attn_implementation():
        return None
    AttentionInterface.register(_ATTENTION, _fused_attention)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)
    fused = copy.deepcopy(encoder)
    fused.set_attn_implementation(_ATTENTION)
    return fused


def _fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention of `transformers.AttentionInterface`, for tracing only.

    `query`, `key`, `value`: ``(n, heads, length, dim of a head)``; keys and values may have fewer heads.
    `attention_mask`: ``(n, 1, length, length)``, added to the scores. `scaling`: factor of the scores; default
    ``dim ** -0.5``. `softcap`, `**unused`: a limit of the scores is not supported; other options change nothing without
    gradients.
    """
    if softcap is not None:
        raise LatelierError("its attention has a softcap.")
    n, heads, length, dim = query.shape
    if key.shape[1] != heads:  # repeating once would leave operators in the graph that move all keys and values
        key, value = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (key, value))
    rows = [each.transpose(1, 2).reshape(n, length, heads * dim) for each in (query, key, value)]
    attended = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (*rows, None, None, attention_mask),
        attrs={"num_heads": heads, "scale": float(dim**-0.5 if scaling is None else scaling)},
        dtype=query.dtype,
        shape=rows[0].shape,
        version=1,
    )
    return attended.reshape(n, length, heads, dim), None


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporters' warnings, which are about models in general."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


logger = logging.getLogger(__name__)


def encoder_fingerprint(encoder: Any) -> str:
    """Return a hash of a transformer's weights and configuration, and of what exports them."""
    config = {**encoder.config.to_dict(), "_name_or_path": None, "transformers_version": transformers.__version__}
    kind = (type(encoder).__module__, type(encoder).__qualname__)
    digest = hashlib.sha256(repr((EXPORT_VERSION, torch.__version__, kind)).encode())
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in encoder.state_dict().items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def has_adapters(encoder: nn.Module) -> bool:
    """Whether a transformer has adapters of peft: they can be turned off and scaled without a change of weights."""
    return any(type(module).__module__.startswith("peft.") for module in submodules(encoder))


def stored_export(encoder: nn.Module, compute_dtype: str, fingerprint: str) -> Path:
    """Return the folder of a transformer's export, made if there is none, it is damaged, or others can write it.

    `compute_dtype`: ``"float32"`` or ``"int8"``; `fingerprint`: its `encoder_fingerprint`; raises `StorageError` if the
    cache folder cannot be written.
    """
    folder = cache_folder() / "onnx" / f"{fingerprint}-{compute_dtype}"
    if is_own(folder) and is_whole(folder):
        return folder
    try:
        if compute_dtype == "int8":
            source = stored_export(encoder, "float32", fingerprint)
            write_folder(folder, lambda target: quantize_int8(source, target))
        else:
            logger.info("exporting %s to ONNX, which is done once", type(encoder).__name__)
            write_folder(folder, lambda target: export_float32(encoder, target))
    except OSError as error:
        if isinstance(error, LatelierError):
            raise
        raise StorageError(
            f"cannot write the cache {folder.parent}: {error}. Set LATELIER_CACHE to a folder that can be written."
        ) from error
    return folder


_KNOWN_OPTIONS = {*INPUTS, "return_dict"}


def exported_session(encoder: nn.Module, compute_dtype: str) -> OnnxEncoder | None:
    """Return the session of a transformer's export, which is made if there is no export of these weights yet.

    Weights that have changed since the first call are not exported again, as they may change in each step of a
    training. `compute_dtype`: ``"float32"`` or ``"int8"``; returns: None if the weights have changed, the transformer
    has adapters, is compiled, or has a hook or a replaced forward inside; raises `LatelierError` if the transformer
    cannot be exported.
    """
    exports = _exports.get(encoder)
    if exports is None:
        exports = _exports[encoder] = _Exports(encoder)
    return exports.session(encoder, compute_dtype)


def known_fingerprint(encoder: nn.Module) -> str:
    """Return the `encoder_fingerprint` that a transformer had at the first call; hashing its weights takes a while."""
    if encoder not in _exports:
        _exports[encoder] = _Exports(encoder)
    return _exports[encoder].fingerprint


@contextmanager
def onnx_forward(encoder: nn.Module, session: OnnxEncoder, heads: Iterable[nn.Linear] = ()) -> Iterator[None]:
    """Run a session in place of a transformer's forward inside the block.

    It replaces it for the calling thread. With gradients, under autocast, for inputs other than a padded batch, and in
    threads outside such a block, the transformer computes itself. `session`: the session of its export, which returns
    float32 whatever the dtype of the weights is. `heads`: the linear layers after it. Those of another dtype multiply
    in float32 too.
    """
    forwards: dict[nn.Module, Callable[..., Any]] = {encoder: _OnnxForward(encoder, session)}
    forwards |= {each: partial(_in_float32, each) for each in heads if each.weight.dtype != torch.float32}
    with replaced_forwards(forwards):
        yield


def _in_float32(linear: nn.Linear, input: Tensor) -> Tensor:
    bias = None if linear.bias is None else linear.bias.float()
    return nn.functional.linear(input.float(), linear.weight.float(), bias)


class _Exports:
    """The sessions of one transformer, and what tells whether its weights are those that were exported.

    It holds no reference to the transformer, by which it is found in a weak dictionary.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self.fingerprint = encoder_fingerprint(encoder)
        self._is_current = True
        self._sessions: dict[str, OnnxEncoder] = {}
        self._look(encoder)

    def session(self, encoder: nn.Module, compute_dtype: str) -> OnnxEncoder | None:
        """Return a session for the weights that the transformer has now; None if they are not those exported."""
        if not (self._tree.is_unchanged() and self._weights.matches()):
            # Weights also move without changing, to memory that worker processes share for instance.
            is_current = encoder_fingerprint(encoder) == self.fingerprint
            if self._is_current and not is_current:
                logger.info("the weights have changed since they were exported: encoding with torch")
            self._is_current = is_current
            self._look(encoder)
        if not self._is_current or self._has_adapters or _is_replaced(encoder) or self._tree.is_overridden():
            return None
        known = self._sessions.get(compute_dtype)
        if known is None:
            folder = stored_export(encoder, compute_dtype, self.fingerprint)
            known = self._sessions[compute_dtype] = OnnxEncoder(folder)
        return known

    def _look(self, encoder: nn.Module) -> None:
        self._tree = ModuleTree(encoder)
        self._weights = Fingerprint([encoder, *self._tree.modules])
        self._has_adapters = has_adapters(encoder)


_exports: WeakKeyDictionary[nn.Module, _Exports] = WeakKeyDictionary()


def _is_replaced(encoder: nn.Module) -> bool:
    """Whether a transformer is compiled, or its forward is neither its own nor one of ours."""
    forward = encoder.__dict__.get("forward")
    return encoder._compiled_call_impl is not None or not (forward is None or isinstance(forward, PatchedForward))


class _OnnxForward:
    """Replaces the forward of a transformer."""

    __slots__ = ("_encoder", "_session")

    def __init__(self, encoder: nn.Module, session: OnnxEncoder) -> None:
        self._encoder = encoder
        self._session = session

    def __call__(self, *args: Any, **options: Any) -> Any:
        computes_itself = args or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if computes_itself or not _accepts(options):
            return type(self._encoder).forward(self._encoder, *args, **options)
        given = (options.get(name) for name in INPUTS)
        inputs: list[Any] = [None if each is None else each.long().numpy() for each in given]
        return BaseModelOutput(last_hidden_state=torch.from_numpy(self._session.run(*inputs)))


def _accepts(options: dict[str, Any]) -> bool:
    """Whether a call is for a padded batch of token ids, with no option that an export does not know."""
    ids, mask = options.get("input_ids"), options.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.shape != ids.shape or ids.ndim != 2:
        return False
    return ids.numel() > 0 and all(name in _KNOWN_OPTIONS or not value for name, value in options.items())


_BACKENDS = ("torch", "onnx", "auto")
_PACKAGES = ("onnxruntime", "onnx", "onnxscript")
# (texts, tokens): a query; and documents, of which each thread has a batch that takes torch about 50 ms on one core.
_SHAPES_BACKENDS = ((1, 12), (4, 100))
_SECONDS = 0.4  # to measure each shape

_choices: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def check_backend(backend: Any, device: Any) -> Any:
    """Check the backend and the device that a model is to be loaded with.

    Returns: the device; ``"cpu"`` if none was asked for and the backend is ``"onnx"``.
    """
    check_choice("backend", backend, _BACKENDS)
    if backend != "onnx":
        return device
    if not _is_installed():
        raise MissingExtraError('backend="onnx"', "onnx")
    if device is not None and str(device).split(":")[0] != "cpu":
        raise InvalidArgumentError(
            f"received backend='onnx' with device={str(device)!r}; it computes on the CPU. Give device='cpu', or "
            "backend='torch'."
        )
    return "cpu"


@contextmanager
def cpu_forwards(model: Any, compute_dtype: str, reads_attention: bool = False) -> Iterator[None]:
    """Encode on the CPU inside the block with the model's backend: patched forwards, or ONNX Runtime.

    `model`: the model; its ``cpu_backend`` is ``"torch"`` where it has none. `compute_dtype`: ``"float32"``;
    ``"int8"``; or ``"autocast"``, for which torch computes in the dtype of its autocast. `reads_attention`: whether the
    encoder's attention is recorded. ONNX Runtime does not return it, so torch computes. Raises `LatelierError` for
    ``"int8"`` if the weights have changed since the model was first used, or it has hooks or adapters inside.
    """
    backend = getattr(model, "cpu_backend", "torch")
    if compute_dtype == "int8" and (backend not in ("onnx", "auto") or not _is_installed()):
        raise InvalidArgumentError(
            "received compute_dtype='int8', which ONNX Runtime computes; load the model with backend='onnx'."
        )
    if compute_dtype == "int8" and reads_attention:
        raise InvalidArgumentError(
            "received compute_dtype='int8' with a pool_method that reads the encoder's attention, which ONNX Runtime "
            "does not return; give another compute_dtype, or pool_method='ward'."
        )
    encoder: Any = model[0].model if isinstance(model[0], Transformer) else None
    if encoder is None and (compute_dtype == "int8" or backend == "onnx"):
        raise InvalidArgumentError(
            f"received backend={backend!r} for a model whose first module is a {type(model[0]).__name__}; ONNX Runtime "
            "runs those that start with a Transformer. Give backend='torch'."
        )
    session = None
    follows_backend = compute_dtype == "float32" and not reads_attention
    if encoder is not None and (compute_dtype == "int8" or (follows_backend and _wants_onnx(encoder, backend))):
        session = exported_session(encoder, compute_dtype)
        if session is None and compute_dtype == "int8":
            raise LatelierError(
                "received compute_dtype='int8', but the weights have changed since the model was first used, or it has "
                "hooks or adapters inside. Save the model, with adapters merged, and load it again to encode in int8."
            )
    with patched_forwards(model) if session is None else onnx_forward(encoder, session, _heads(model)):
        yield


def _heads(model: Any) -> list[nn.Linear]:
    dense = (module for module in model if isinstance(module, Dense))
    return [each for module in dense for each in module.children() if type(each) is nn.Linear]


@cache  # looking for packages takes a tenth of the time of a short query
def _is_installed() -> bool:
    return all(find_spec(package) is not None for package in _PACKAGES)


def _wants_onnx(encoder: nn.Module, backend: str) -> bool:
    """Whether the backend is ONNX Runtime, or ``"auto"`` and ONNX Runtime is faster."""
    if backend != "auto" or not _is_installed():
        return backend == "onnx"
    if encoder not in _choices:
        try:
            _choices[encoder] = _recall_or_measure(encoder)
        except LatelierError as error:
            logger.info("encoding with torch: %s", error)
            _choices[encoder] = False
    return _choices[encoder]


def _recall_or_measure(encoder: nn.Module) -> bool:
    if next(encoder.parameters()).dtype != torch.float32:
        return False
    path = cache_folder() / "onnx" / f"{known_fingerprint(encoder)}-{_machine()}.backend"
    try:
        return path.read_text(encoding="utf-8") == "onnx"
    except (OSError, ValueError):
        is_faster = _is_faster(encoder)
    try:
        with replaced(path) as new:
            new.write_text("onnx" if is_faster else "torch", encoding="utf-8")
    except OSError as error:
        logger.info("the choice of a backend is not remembered: %s", error)
    return is_faster


def _machine() -> str:
    """Return a hash of what the faster backend depends on: processor, threads and versions."""
    features = sorted(name for name, present in get_host_cpu_features().items() if present)
    versions = [version(package) for package in ("torch", "onnxruntime")]
    facts = (platform.machine(), get_host_cpu_name(), features, torch.get_num_threads(), versions)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _is_faster(encoder: Any) -> bool:
    """Whether ONNX Runtime is faster than torch: the geometric mean of the ratios of times, by turns, at their best."""
    session = exported_session(encoder, "float32")
    if session is None:
        return False
    total = 0.0
    for n, length in _SHAPES_BACKENDS:
        ids = torch.randint(0, encoder.config.vocab_size, (n, length), generator=torch.Generator().manual_seed(0))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "return_dict": True}
        best = [float("inf"), float("inf")]
        begin = time.perf_counter()
        rounds = 0
        while rounds < 2 or time.perf_counter() - begin < _SECONDS:  # the first round prepares weights and memory
            for i, forwards in enumerate((lambda: patched_forwards(encoder), lambda: onnx_forward(encoder, session))):
                start = time.perf_counter()
                _run(encoder, inputs, forwards)
                best[i] = min(best[i], time.perf_counter() - start)
            rounds += 1
        total += log(best[1] / best[0])
    return total < 0


def _run(encoder: Any, inputs: dict[str, Any], forwards: Callable[[], AbstractContextManager[None]]) -> None:
    """Run a query once; or documents once in each thread."""

    def run(held: AbstractContextManager[Any]) -> None:
        with held, torch.no_grad(), forwards():
            encoder(**inputs)

    if len(inputs["input_ids"]) == 1 or not runs_in_threads(encoder):
        run(nullcontext())
    else:
        for_each(run, [held_threads(1) for _ in range(allowed_threads())])


EXPORT_DTYPES = ("float32", "int8")
_FILES = {DESCRIPTION_FILE, GRAPH_FILE, WEIGHTS_FILE, TOKENIZER_FILE, HEADS_FILE}
_NO_LIMIT = 10**9  # transformers' tokenizers without a limit have 10**30


def export(model: Any, folder: str | os.PathLike[str], *, compute_dtype: str = "float32") -> None:
    """Write a model to a folder from which `ExportedEncoder` encodes without torch.

    Parameters
    ----------
    model
        A `ColBERT`. Its lengths, prompts and `truncate_dim` are part of the export.
    folder
        The folder: a new or empty one, or an export, which is replaced.
    compute_dtype
        ``"float32"``: the same vectors to 1e-5; ``"int8"``: products with weights in int8, in two thirds of the space.

    Raises
    ------
    MissingExtraError
        If a package that exporting needs is missing.
    InvalidArgumentError
        If the model has a part that cannot be exported, or the folder holds something else.
    """
    check_choice("compute_dtype", compute_dtype, EXPORT_DTYPES)
    target = as_path(folder, "the folder")
    if target.exists() and not _is_replaceable(target):
        raise InvalidArgumentError(f"{str(target)!r} exists and is not an export; give a new folder.")
    heads, description = _heads_exporting(model), _describe(model)
    encoder = model[0].model
    fingerprint = encoder_fingerprint(encoder)
    source = stored_export(encoder, compute_dtype, fingerprint)

    def write(unfinished: Path) -> dict[str, Any]:
        for name in (GRAPH_FILE, WEIGHTS_FILE):
            _link_or_copy(source / name, unfinished / name)
        model.tokenizer.backend_tokenizer.save(str(unfinished / TOKENIZER_FILE))
        weights = {}
        for i, head in enumerate(heads):
            for name, parameter in head.linear.named_parameters():
                weights[f"{i}.{name}"] = parameter.detach().float().cpu().contiguous()
        if weights:
            (unfinished / HEADS_FILE).write_bytes(save(weights))
        return {"fingerprint": fingerprint, "compute_dtype": compute_dtype, **description}

    try:
        write_folder(target, write)
    except OSError as error:
        if isinstance(error, LatelierError):
            raise
        raise StorageError(f"cannot write the export {target}: {error}.") from error


def _link_or_copy(source: Path, target: Path) -> None:
    """Put a file of the cache into an export: inside the cache as a second name, which takes no space."""
    # Windows does not sync a file that another process has mapped.
    if os.name != "nt" and cache_folder().resolve() in target.resolve().parents:
        with suppress(OSError):  # some file systems have no hard links
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _is_replaceable(path: Path) -> bool:
    """Whether this is an empty folder, or one with the files of an export and no others, which would be lost."""
    names = {each.name for each in path.iterdir()} if path.is_dir() else {""}
    return not names or {DESCRIPTION_FILE, GRAPH_FILE} <= names <= _FILES


def _heads_exporting(model: Any) -> list[Dense]:
    """Return the linear layers of a model, after checking that all its modules can be exported, in their order."""
    modules = list(model)
    if not modules or type(modules[0]) is not Transformer:
        raise _not_exportable("its first module is not a Transformer.")
    if has_adapters(modules[0].model):
        raise _not_exportable("its transformer has adapters of peft; merge them into its weights first.")
    heads = [module for module in modules[1:] if type(module) is Dense]
    rest = [module for module in modules[1:] if type(module) not in (Dense, MultiVectorMask)]
    if [type(module) for module in rest] not in ([], [Normalize]) or (rest and modules[-1] is not rest[0]):
        names = ", ".join(type(module).__name__ for module in modules[1:])
        raise _not_exportable(f"after the transformer it has {names}; expected Dense, MultiVectorMask and Normalize.")
    for module in [*heads, *rest]:
        if (module.module_input_name, module.module_output_name) != ("token_embeddings", "token_embeddings"):
            raise _not_exportable(f"a {type(module).__name__} of it has other inputs than token_embeddings.")
    for head in heads:
        activation = type(head.activation_function).__name__
        if activation not in ACTIVATIONS or head.use_residual:
            kind = f"the activation {activation}" if activation not in ACTIVATIONS else "a residual connection"
            raise _not_exportable(f"a linear layer has {kind}; expected one of {', '.join(ACTIVATIONS)} alone.")
    return heads


def _describe(model: Any) -> dict[str, Any]:
    encoder, tokenizer = model[0], model.tokenizer
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise _not_exportable("its tokenizer is not one of the library tokenizers.")
    if tokenizer.padding_side != "right" or encoder.processing_kwargs or set(encoder.modality_config) != {"text"}:
        raise _not_exportable("its inputs are not plain texts, padded on the right.")
    return {
        "dim": model.truncate_dim or model.embedding_size,
        "query": _describe_task(model, "query"),
        "document": _describe_task(model, "document"),
        "pad_id": tokenizer.pad_token_id or 0,
        "truncation_side": tokenizer.truncation_side,
        "heads": [type(head.activation_function).__name__ for head in _heads_exporting(model)],
        "normalizes": isinstance(list(model)[-1], Normalize),
    }


def _describe_task(model: Any, task: str) -> dict[str, Any]:
    encoder, tokenizer = model[0], model.tokenizer
    masks = [module for module in model if isinstance(module, MultiVectorMask)]
    skipped: list[int] = []
    kept: list[int] | None = None
    for mask in masks:
        if task in mask.skiplist_tasks and mask._skiplist_ids is not None:
            skipped += mask._skiplist_ids.tolist()
        if task != "query" and mask.keep_only_token_ids:
            kept = list(mask.keep_only_token_ids)
    max_length = encoder.query_length if task == "query" else encoder.document_length
    expansion = encoder.query_expansion if task == "query" else None
    described = None
    if expansion is not None:
        if not masks:
            raise _not_exportable("it expands queries, but has no MultiVectorMask that scores the expansion.")
        max_length = expansion["length"] if expansion["strategy"] == "fixed" or max_length is None else max_length
        token = expansion["token"]
        token_id = tokenizer.mask_token_id if token is None else tokenizer.convert_tokens_to_ids(token)
        token_id = tokenizer.eos_token_id if token_id is None else token_id
        described = {"length": expansion["length"], "attend": expansion["attend"], "token_id": token_id}
    if max_length is None and tokenizer.model_max_length < _NO_LIMIT:
        max_length = tokenizer.model_max_length
    prompt = model._resolve_prompt(None, task if task in model.prompts else None)
    return {
        "prompt": prompt or "",
        "max_length": max_length,
        "expansion": described,
        "skipped": skipped,
        "kept": kept,
    }


def _not_exportable(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"this model cannot be exported: {reason}")
