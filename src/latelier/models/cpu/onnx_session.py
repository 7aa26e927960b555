"""An exported encoder in ONNX Runtime, on the CPU. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from latelier.errors import MissingExtraError
from latelier.kernels.threads import allowed_threads
from latelier.models.cpu.onnx_files import ExportLoadError

__all__ = ["GRAPH_FILE", "INPUTS", "WEIGHTS_FILE", "OnnxEncoder"]

GRAPH_FILE = "encoder.onnx"
# Weights outside the graph are memory-mapped: a session opens in a third of the time and half of the memory.
WEIGHTS_FILE = "encoder.onnx.data"
# Queries have 32 tokens at most by default; the threads of one pass over MiniLM are woken some 40 times.
_SINGLE_TOKENS = 64
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class OnnxEncoder:
    """A transformer as exported by `latelier.models.cpu.onnx_export`: token ids in, last hidden state out.

    Inputs of few tokens are computed by the calling thread alone: waking other threads for each product takes longer
    than a query. So are all inputs where the calling thread may use no other, see
    `latelier.kernels.threads.limited_threads`. Idle threads sleep rather than spin, so that on a busy machine two
    threads are not slower than one.

    Parameters
    ----------
    folder
        The folder with `GRAPH_FILE` and `WEIGHTS_FILE`.

    Attributes
    ----------
    width
        Dimensions of the hidden states.

    Raises
    ------
    MissingExtraError
        If ONNX Runtime is not installed.
    ModelLoadError
        If the files are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / GRAPH_FILE
        single = _open_session(self._path, 1)
        self._by_threads = {1: single}
        self._lock = Lock()
        self._names = [each.name for each in single.get_inputs()]
        shapes = [each.shape for each in single.get_outputs()]
        if not {*self._names} <= {*INPUTS} or len(shapes) != 1 or len(shapes[0]) != 3 or type(shapes[0][2]) is not int:
            reason = ValueError(f"it has the inputs {self._names} and outputs of the shapes {shapes}: no transformer.")
            raise ExportLoadError(str(self._path), reason)
        self.width: int = shapes[0][2]

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray | None) -> np.ndarray:
        """Return the last hidden state, ``(n, length, dim)`` float32.

        Parameters
        ----------
        input_ids, attention_mask, token_type_ids
            ``(n, length)`` int64; types that are None are zeros.

        Raises
        ------
        ModelLoadError
            If the graph cannot compute these inputs, such as token ids that its table of embeddings does not have.
        """
        given: dict[str, Any] = dict(zip(INPUTS, (input_ids, attention_mask, token_type_ids), strict=True))
        if token_type_ids is None:
            given["token_type_ids"] = np.zeros_like(input_ids)
        session = self._session(1 if input_ids.size <= _SINGLE_TOKENS else allowed_threads())
        try:
            hidden: np.ndarray = session.run(None, {name: given[name] for name in self._names})[0]
        except Exception as error:  # as above
            raise ExportLoadError(str(self._path), error) from error
        return hidden

    def _session(self, threads: int) -> Any:
        """Return the session with a number of threads, opened when first used: it copies the weights once more."""
        with self._lock:
            if threads not in self._by_threads:
                self._by_threads[threads] = _open_session(self._path, threads)
            return self._by_threads[threads]


def _open_session(path: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("Encoding with ONNX Runtime", "onnx") from error

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal errors: all others are raised
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # ONNX Runtime's fusion of a residual with the norm after it is slower than the two (a quarter of int8).
        return onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
        )
    except Exception as error:  # the classes of ONNX Runtime's errors have no narrower base
        raise ExportLoadError(str(path), error) from error
