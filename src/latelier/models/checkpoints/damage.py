"""Damaged and incomplete folders of models: the loader's errors name a line of JSON or a module, but no folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from sentence_transformers.base.modules import Transformer

from latelier.errors import LatelierError, ModelLoadError
from latelier.models.text_encoder import TextEncoder

__all__ = ["check_modules", "damage_errors"]

_ARGUMENTS = ("model_kwargs", "processor_kwargs", "config_kwargs")
# Those that this library passes itself.
_OWN_OPTIONS = {"use_safetensors", "weights_only"}


@contextmanager
def damage_errors(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of the loader about the contents of files into `ModelLoadError`.

    Where arguments are handed on to transformers, or code of the model is trusted, only errors about the format of a
    file are: others may be of the arguments or of the code.

    Parameters
    ----------
    name
        Name or folder of the model.
    options
        Arguments of the loader.
    """
    try:
        yield
    except (LatelierError, OSError, ImportError, MemoryError):
        raise
    except (JSONDecodeError, UnicodeDecodeError, SafetensorError, UnpicklingError) as error:
        raise ModelLoadError(name, error) from error
    except Exception as error:
        given = any(set(options.get(argument) or ()) - _OWN_OPTIONS for argument in _ARGUMENTS)
        if given or options.get("trust_remote_code") or "trust_remote_code" in str(error):
            raise
        raise ModelLoadError(name, error) from error


def check_modules(name: str, modules: Sequence[Any]) -> None:
    """Raise an error if the loader found no modules, or has made an empty tokenizer, for which all words are [UNK].

    transformers does so where a folder has no files of its tokenizer. An encoder may have more embeddings than its
    tokenizer has tokens, and a tokenizer may need no files: only both are a fault.

    Parameters
    ----------
    name
        Name or folder of the model; the tokenizer of a name is not looked at.
    modules
        What was loaded.

    Raises
    ------
    ModelLoadError
        If modules or the files of the tokenizer are missing.
    """
    if not modules:
        raise ModelLoadError(name, FileNotFoundError("its modules.json lists no modules."))
    encoder = modules[0]
    if not isinstance(encoder, (Transformer, TextEncoder)) or not Path(name).is_dir():
        return
    tokenizer: Any = encoder.tokenizer
    files = sorted(set(getattr(tokenizer, "vocab_files_names", {}).values()))
    if not files or any(any(Path(name).rglob(file)) for file in files):
        return
    model: Any = encoder.model
    tokens, rows = len(tokenizer), model.get_input_embeddings().num_embeddings
    if 2 * tokens < rows:
        raise ModelLoadError(
            name,
            FileNotFoundError(
                f"its tokenizer knows {tokens:,} tokens for {rows:,} embeddings, and the folder has none of "
                f"{', '.join(files)}. Copy the whole folder."
            ),
        )
