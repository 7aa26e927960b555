"""`RemoteEncoder`: the model of a server of `latelier serve`, which a retriever uses without torch and weights."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from safetensors import SafetensorError
from safetensors.numpy import load

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, LatelierError
from latelier.utils.checks import cut, short

if TYPE_CHECKING:
    from latelier.retrieve.encoders import Task

_TOKEN = "LATELIER_READ_TOKEN"
_TEXTS = 64  # in a request: its answer is then a few megabytes
_SECONDS = 120.0


def is_address(name: str) -> bool:
    """Whether a model's name is the address of a server."""
    return name.startswith(("http://", "https://"))


class RemoteEncoder:
    """The encoder of a server, of its first index or of the one that the address names; it has no tokenizer."""

    similarity_fn_name = "maxsim"  # of a model whose scores are means, the server sends divided queries
    encodes_in_parallel = True
    is_untrained = False
    longest_query = None
    has_offsets = False
    special_tokens: list[str] = []  # noqa: RUF012 (never changed)
    origin: dict[str, str | None] = {"model": None, "revision": None, "dtype": None}  # noqa: RUF012 (never changed)

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        path, _, name = parts.path.strip("/").rpartition("v1/indexes/")
        if path or parts.query or not parts.hostname or (parts.path.strip("/") and not name):
            raise InvalidArgumentError(
                f"received {short(address)} as a model; expected http://HOST:PORT or http://HOST:PORT/v1/indexes/NAME."
            )
        self._url = f"{parts.scheme}://{parts.netloc}/v1/encode"
        self._index = unquote(name)
        self._lock = threading.Lock()
        self._dim = 0

    @property
    def embedding_size(self) -> int:
        """Dimension of the token vectors."""
        with self._lock:
            self._dim = self._dim or self.encode(["?"], "query").dim
        return self._dim

    def encode(self, texts: Sequence[str], task: Task) -> TokenEmbeddings:
        """Return the token vectors of texts, as numpy arrays of float32."""
        encoded: list[TokenEmbeddings] = []
        for first in range(0, len(texts), _TEXTS):
            part = list(texts[first : first + _TEXTS])
            answer = self._post({"texts": part, "input_type": task, "model": self._index or None})
            try:
                arrays = load(answer)
                encoded.append(TokenEmbeddings(arrays["vectors"], arrays["offsets"]))
            except (SafetensorError, KeyError) as error:
                raise EmbeddingsError(f"{self._url} answered with something else than vectors: {error}.") from error
        return TokenEmbeddings.concatenate(encoded)

    def limits(self, task: Task) -> tuple[int, None]:
        """Return no limit: the server keeps its lengths for itself."""
        return 0, None

    def prompt_and_expansion(self, task: Task) -> tuple[None, None]:
        """Return neither, which are the server's."""
        return None, None

    def with_longer_queries(self) -> RemoteEncoder:
        """Return the encoder itself: its server cuts queries."""
        return self

    def tokens(self, *_: Any, **__: Any) -> Any:
        """Raise an error, as all that needs the tokenizer does."""
        raise InvalidArgumentError(
            f"{self._url} sends vectors, not the tokens that explanations and passages need; load the model here."
        )

    token_ranges = text_offsets = join = tokens

    def _post(self, body: dict[str, Any]) -> bytes:
        headers = {"content-type": "application/json", "accept": "application/octet-stream"}
        if os.environ.get(_TOKEN):
            headers["authorization"] = f"Bearer {os.environ[_TOKEN]}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            reason = cut(error.read(2000).decode(errors="replace"), 500)
            raise LatelierError(f"{self._url} answered with status {error.code}: {reason}") from error
        except OSError as error:
            raise LatelierError(f"{self._url} cannot be reached: {error}. Does the server run there?") from error
