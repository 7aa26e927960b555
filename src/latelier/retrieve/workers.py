"""`EncodingWorkers`: documents encoded by several processes, on one machine or a Ray cluster.

Chunks go to the workers that have least to do, and their token vectors come back in the order of the chunks. At most
two chunks per worker are under way, so a slow index slows the workers down and memory stays bounded.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes.base import PathLike
from latelier.retrieve.choice import Asked
from latelier.retrieve.encoders import LoadedEncoder
from latelier.retrieve.identity import is_same_model
from latelier.retrieve.query_model import QueryModel, open_model
from latelier.utils.checks import check_count
from latelier.utils.misc import Closing
from latelier.utils.ray_session import connect_to_ray

if TYPE_CHECKING:
    from latelier.models import ColBERT

# Chunks per worker: the one that it encodes, and the next one, so that it need not wait for this process.
_CHUNKS_PER_WORKER = 2
# Processes that a chunk may take with it (a text may need more memory than there is) before that is an error.
_RETRIES = 3


class EncodingWorkers(Closing):
    """Processes that encode documents, on this machine or on all machines of a Ray cluster.

    Needs the extra ``ray``. A running cluster is used if there is one (``ray start``, ``RAY_ADDRESS``); else one of
    this machine is started. The model is sent to the workers, so they need the library but not the model's files. A
    worker process that dies is started again, and encodes its chunks again.

    Parameters
    ----------
    model
        As for `latelier.retrieve.Retriever`.
    workers
        Number of processes.
    num_cpus
        CPUs that Ray reserves for each worker, and threads that it computes with.
    num_gpus
        GPUs that Ray reserves for each worker, which computes on one of them; 0.5 lets two workers share one. 0: the
        workers compute on CPUs.
    model_options
        As for `latelier.retrieve.Retriever`.
    timeout
        Seconds to wait until all workers have loaded the model.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    InvalidArgumentError
        If an argument is invalid, or the model is an exported encoder or cannot be sent to another process.
    LatelierError
        If a worker cannot load the model, or the cluster has no room for all of them within the timeout.

    Examples
    --------
    >>> from latelier.retrieve import EncodingWorkers, Retriever
    >>> retriever = Retriever(device="cpu")
    >>> texts = ["Bananas are healthy.", "The moon is far away."]
    >>> with EncodingWorkers(retriever.model) as workers:
    ...     retriever.add(texts, workers=workers, chunk_size=1)
    ...     [vectors.lengths.tolist() for vectors in workers.encode([texts])]
    [[6, 8]]
    """

    def __init__(
        self,
        model: ColBERT | PathLike | QueryModel | None = None,
        workers: int = 2,
        *,
        num_cpus: int = 1,
        num_gpus: float = 0,
        model_options: Mapping[str, Any] | None = None,
        timeout: float = 300.0,
    ) -> None:
        check_count("workers", workers)
        self._ray = connect_to_ray("Encoding on many workers", workers * num_cpus)
        device = "cpu" if isinstance(model, (str, os.PathLike, type(None))) else None
        own = open_model(Asked(model, model_options or {}, device))
        compute_dtype = own.model.compute_dtype
        if compute_dtype == "int8":
            raise InvalidArgumentError(
                "received workers, which encode by torch, for a model that computes in int8; omit them, or fill a new "
                "index with compute_dtype='float32'."
            )
        self._fingerprint = own.identity.fingerprint
        resources = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        process = self._ray.remote(_Worker).options(**resources, max_restarts=-1, max_task_retries=_RETRIES)
        # Ray drops what no reference is left to, and a worker that is started again reads the model again.
        self._model = self._ray.put(_as_bytes(own, self._ray.cloudpickle))
        self._workers = [process.remote(self._model, num_cpus, bool(num_gpus), compute_dtype) for _ in range(workers)]
        self._open: list[list[Any]] = [[] for _ in self._workers]  # results under way, for each worker
        try:
            self._wait(resources, timeout)
        except BaseException:
            self.close()
            raise

    def encode(
        self,
        chunks: Iterable[Sequence[str]],
        *,
        batch_size: int = 32,
        pool_factor: int = 1,
        precision: str | None = None,
    ) -> Generator[TokenEmbeddings, None, None]:
        """Encode documents and yield their token vectors, in order.

        Parameters
        ----------
        chunks
            Lists of texts, each encoded by one worker. They are read as workers become free, at most two per worker
            ahead of what was yielded.
        batch_size, pool_factor, precision
            As in `latelier.retrieve.Retriever.add`.

        Yields
        ------
        TokenEmbeddings
            The token vectors of one chunk, equal to those that the model computes in one process.

        Raises
        ------
        LatelierError
            If a worker raises an error, which is the cause of this one (a `LatelierError` is raised as it is), or a
            chunk ends its process four times. If reading `chunks` raises an error, it is raised after all chunks read
            before it were yielded.
        """
        options = {"batch_size": batch_size, "pool_factor": pool_factor, "precision": precision}
        waiting: deque[Any] = deque()
        source = iter(chunks)
        failure = None
        # If the caller stops early, the chunks under way end by themselves: a call of a Ray actor that is cancelled
        # while it waits can leave the next ones waiting for it, for 30 seconds.
        while True:
            try:
                texts = next(source, None)
            except Exception as error:  # noqa: BLE001 (raised again once the chunks before it are done)
                failure = error
                texts = None
            if texts is None:
                break
            waiting.append(self._submit(list(texts), options))
            if len(waiting) >= _CHUNKS_PER_WORKER * len(self._workers):
                yield self._value(waiting.popleft())
        while waiting:
            yield self._value(waiting.popleft())
        if failure is not None:
            raise failure

    def check(self, model: QueryModel) -> None:
        """Check that the workers have the weights of a model.

        Raises
        ------
        InvalidArgumentError
            If the weights differ.
        """
        if not is_same_model(self._fingerprint, model.identity.fingerprint):
            raise InvalidArgumentError(
                "the workers have another model than the retriever; make them with EncodingWorkers(retriever.model)."
            )

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []

    def __len__(self) -> int:
        return len(self._workers)

    def __repr__(self) -> str:
        return f"EncodingWorkers({len(self)} workers)"

    def _wait(self, resources: Mapping[str, float], timeout: float) -> None:
        """Wait until all workers have loaded the model."""
        started = [worker.process_id.remote() for worker in self._workers]
        ready, missing = self._ray.wait(started, num_returns=len(started), timeout=timeout)
        for result in ready:
            self._value(result)
        if missing:
            total = self._ray.cluster_resources()
            free = self._ray.available_resources()
            offered = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))
            raise LatelierError(
                f"{len(missing)} of {len(started)} workers did not start within {timeout:g} s. Each takes "
                f"{resources['num_cpus']:g} CPUs and {resources['num_gpus']:g} GPUs; free in the cluster: {offered}. "
                "Use fewer workers, or add machines to the cluster."
            )

    def _submit(self, texts: list[str], options: Mapping[str, Any]) -> Any:
        """Send texts to the worker with the fewest chunks under way, and return the reference to its result."""
        if not self._workers:
            raise InvalidArgumentError("these workers are closed; make new ones.")
        for i, results in enumerate(self._open):
            if results:
                self._open[i] = self._ray.wait(results, num_returns=len(results), timeout=0)[1]
        least = min(range(len(self._workers)), key=lambda i: len(self._open[i]))
        result = self._workers[least].encode.remote(texts, options)
        self._open[least].append(result)
        return result

    def _value(self, result: Any) -> Any:
        """Wait for a result; an error of the worker is the cause of the one that is raised."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(result)
        except exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, LatelierError):
                raise cause from None
            raise LatelierError(f"an encoding worker raised {type(cause).__name__}: {cause}") from cause
        except exceptions.RayActorError as error:
            cause = getattr(error, "cause", None)
            raise LatelierError(
                f"an encoding worker could not start, or its process ended {_RETRIES + 1} times in one chunk, perhaps "
                f"for lack of memory (a lower batch_size or chunk_size needs less): {error}"
            ) from cause


@contextmanager
def open_workers(workers: EncodingWorkers | int, model: QueryModel) -> Iterator[EncodingWorkers]:
    """Return a context with workers that encode as a model does; those given by number end with it."""
    if isinstance(workers, EncodingWorkers):
        workers.check(model)
        yield workers
        return
    check_count("workers", workers)
    on_gpu = isinstance(model.documents, LoadedEncoder) and model.documents.loaded.device.type == "cuda"
    with EncodingWorkers(model, workers, num_gpus=1 if on_gpu else 0) as started:
        yield started


class _Worker:
    """A process that computes in `threads` threads, or on the GPU that Ray has reserved."""

    def __init__(self, model: bytes, threads: int, on_gpu: bool, compute_dtype: str) -> None:
        import torch

        torch.set_num_threads(threads)
        loaded = torch.load(io.BytesIO(model), map_location="cpu", weights_only=False)
        placed = loaded.to("cuda" if on_gpu else "cpu")
        self._model = QueryModel.of(placed, compute_dtype)

    def process_id(self) -> int:
        """Return the id of the process, once the model is loaded."""
        return os.getpid()

    def encode(self, texts: list[str], options: dict[str, Any]) -> TokenEmbeddings:
        """Return the token vectors of texts."""
        return self._model.encode_documents(texts, **options)


def _as_bytes(model: QueryModel, pickle: Any) -> bytes:
    """Return a model, and by cloudpickle the classes of its script, as bytes that `torch.load` reads."""
    import torch

    target = io.BytesIO()
    loaded = model.model.loaded
    try:
        torch.save(loaded, target, pickle_module=pickle)
    except Exception as error:  # whatever the pickling of a module of the user's own raises
        raise InvalidArgumentError(
            f"the model cannot be sent to other processes: {type(error).__name__}: {error}. Encode without workers."
        ) from error
    return target.getvalue()
