"""`TextEncoder`: a small transformer of this library's own modules, with a tokenizer that it trains."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import WordPiece
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from latelier.errors import InvalidArgumentError
from latelier.models.arguments import checked_stream
from latelier.modules import TiedOutput, TransformerEncoder
from latelier.utils.checks import check_count, check_number, short

# Options of sentence-transformers' loader that a plain file of weights has no use for.
_LOADER_OPTIONS = {"use_safetensors", "weights_only"}


class TextEncoder(InputModule):
    """A tokenizer and a `TransformerEncoder`: texts in, one vector per token out.

    ``ColBERT(modules=[encoder])`` builds the ColBERT recipe around it. A saved model loads in `ColBERT`, and in plain
    sentence-transformers with ``trust_remote_code=True``, as it names a class that is not one of theirs.

    Parameters
    ----------
    model
        The encoder.
    tokenizer
        A tokenizer of transformers with a padding token, such as that of `train_tokenizer`, with no more tokens than
        the encoder has embeddings.
    max_seq_length
        Maximum number of tokens that the encoder reads, special tokens included.
    query_length, document_length
        Maximum number of tokens of queries and of documents; None: `max_seq_length`. `ColBERT` sets them.
    query_expansion
        As of `sentence_transformers.base.modules.Transformer`, with the strategy ``"fixed"``: ``length`` is the number
        of tokens of every query, ``attend`` whether the encoder attends to the added ones, ``token`` what is added
        (None: the mask token). `ColBERT` sets it.

    Raises
    ------
    InvalidArgumentError
        If an argument has another type or value.

    Examples
    --------
    >>> from latelier.models import ColBERT, TextEncoder, train_tokenizer
    >>> from latelier.modules import TransformerEncoder
    >>> texts = ["a pear and a fig", "figs and pears"]
    >>> tokenizer = train_tokenizer(texts, vocabulary_size=200)
    >>> encoder = TransformerEncoder(len(tokenizer), dim=32, heads=2)
    >>> model = ColBERT(
    ...     modules=[TextEncoder(encoder, tokenizer)],
    ...     embedding_size=16,
    ...     device="cpu",
    ... )
    >>> model.tokens("a fig", is_query=False)
    ['[CLS]', '[D] ', 'a', 'fig', '[SEP]']
    >>> model.encode_document(texts, packed=True)
    TokenEmbeddings(2 texts, 14 tokens, dim=16, float32, cpu)
    """

    config_file_name = "text_encoder_config.json"
    config_keys = ["max_seq_length", "query_length", "document_length", "query_expansion"]  # noqa: RUF012 (as in the base)
    tokenizer: PreTrainedTokenizerBase

    def __init__(
        self,
        model: TransformerEncoder,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 512,
        *,
        query_length: int | None = None,
        document_length: int | None = None,
        query_expansion: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        size = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > size:
            raise InvalidArgumentError(f"received {len(tokenizer)} tokens for an encoder with {size} embeddings.")
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = check_count("max_seq_length", max_seq_length)
        self.query_length = check_count("query_length", query_length, optional=True)
        self.document_length = check_count("document_length", document_length, optional=True)
        self.query_expansion = query_expansion

    def get_embedding_dimension(self) -> int:
        """Return the number of channels of the token vectors."""
        return self.model.dim

    def preprocess(  # type: ignore[override]
        self, inputs: Sequence[str], prompt: str | None = None, task: str | None = None, max_length: int | None = None
    ) -> dict[str, Any]:
        """Tokenise texts.

        Parameters
        ----------
        inputs
            The texts.
        prompt
            What to put before each; None: nothing.
        task
            ``"query"``, ``"document"`` or None: which length cap to apply, and whether to expand.
        max_length
            Cap instead of that of the task; expanded queries keep their length.

        Returns
        -------
        dict
            ``input_ids`` and ``attention_mask``, ``(n, tokens)``; for expanded queries ``query_expansion_positions``,
            True at added tokens.
        """
        texts = [(prompt or "") + text for text in inputs]
        if task == "query":
            expansion = self.query_expansion
        else:
            expansion = None
        own = {"query": self.query_length, "document": self.document_length}.get(task or "")
        if expansion:
            cap = expansion["length"]
        else:
            cap = max_length or own or self.max_seq_length
        encoded = self.tokenizer(
            texts,
            padding="max_length" if expansion else True,
            truncation=True,
            max_length=min(cap, self.max_seq_length),
            return_tensors="pt",
            return_token_type_ids=False,
        )
        features = dict(encoded)
        if expansion:
            return _expand(features, expansion, self.tokenizer)
        return features

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``token_embeddings`` ``(n, tokens, dim)`` to features of `preprocess`.

        Parameters
        ----------
        features
            ``input_ids`` and ``attention_mask``, and any others, which are kept.
        **kwargs
            Not used; sentence-transformers passes those of other modules.
        """
        return {**features, "token_embeddings": self.model(features["input_ids"], features["attention_mask"])}

    def warm_up(
        self,
        texts: Sequence[str],
        *,
        steps: int,
        batch_size: int = 32,
        learning_rate: float = 2e-3,
        mask_share: float = 0.15,
        seed: int = 0,
    ) -> float:
        """Train the encoder to predict masked tokens, before it is trained to match texts (Devlin et al., 2019).

        Texts alone are enough, without pairs. Masked tokens are scored by `latelier.modules.TiedOutput`.

        Parameters
        ----------
        texts
            What to learn from, in batches in random order, as often as the steps take.
        steps
            Number of batches.
        batch_size
            Texts in a batch.
        learning_rate
            Of AdamW, after a tenth of the steps in which it rises from 0; it then falls to 0.
        mask_share
            Share of the tokens that are masked, special tokens left out.
        seed
            Of the order and of what is masked.

        Returns
        -------
        float
            Mean cross-entropy of the last tenth of the steps.

        Examples
        --------
        >>> from latelier.models import TextEncoder, train_tokenizer
        >>> from latelier.modules import TransformerEncoder
        >>> texts = ["a pear and a fig", "figs and pears"] * 8
        >>> tokenizer = train_tokenizer(texts, vocabulary_size=200)
        >>> encoder = TextEncoder(TransformerEncoder(len(tokenizer), dim=32, heads=2), tokenizer)
        >>> first, then = (encoder.warm_up(texts, steps=steps, batch_size=8) for steps in (1, 40))
        >>> then < first / 2
        True
        """
        check_count("steps", steps)
        share = check_number("mask_share", mask_share, most=1.0)
        tokenizer = self.tokenizer
        output = TiedOutput(self.model).to(next(self.parameters()).device)
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.AdamW([*self.model.parameters(), *output.parameters()], lr=learning_rate)
        warm = max(1, steps // 10)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
        )
        special = torch.tensor(tokenizer.all_special_ids)
        losses = []
        order = torch.empty(0, dtype=torch.int64)
        was_training = self.training
        self.train()
        for _ in range(steps):
            if len(order) < batch_size:
                order = torch.cat([order, torch.randperm(len(texts), generator=generator)])
            chosen = order[:batch_size]
            order = order[batch_size:]
            features = self.preprocess([texts[i] for i in chosen.tolist()])
            ids = features["input_ids"]
            mask = features["attention_mask"]
            masked = (torch.rand(ids.shape, generator=generator) < share) & ~torch.isin(ids, special)
            if not masked.any():
                continue
            hidden = self.model(
                ids.masked_fill(masked, tokenizer.mask_token_id).to(output.bias.device), mask.to(output.bias.device)
            )
            loss = output.loss(hidden[masked], ids[masked].to(hidden.device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        self.train(was_training)
        last = losses[-warm:] or [float("nan")]
        return sum(last) / len(last)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON, those of the encoder under ``model``."""
        return {**super().get_config_dict(), "model": self.model.arguments}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save weights, tokenizer and settings to a folder.

        Parameters
        ----------
        output_path
            The folder.
        safe_serialization
            Write safetensors rather than a pickle.
        *args, **kwargs
            Not used; sentence-transformers passes those of other modules.
        """
        self.save_config(output_path)
        self.save_tokenizer(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(  # type: ignore[override]
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TextEncoder:
        """Load what `save` wrote, from a folder or the Hugging Face hub.

        Parameters
        ----------
        model_name_or_path, subfolder, token, cache_folder, revision, local_files_only
            As in `sentence_transformers.base.modules.Module.load`.
        model_kwargs
            None, or no options: the encoder is not one of transformers.
        **kwargs
            Not used; sentence-transformers passes those of other modules.

        Raises
        ------
        InvalidArgumentError
            If options are given.
        """
        others = {name: value for name, value in (model_kwargs or {}).items() if name not in _LOADER_OPTIONS}
        if others:
            raise InvalidArgumentError(f"received model_kwargs={short(others)}; a TextEncoder has none.")
        place: dict[str, Any] = {"subfolder": subfolder, "token": token, "cache_folder": cache_folder}
        place |= {"revision": revision, "local_files_only": local_files_only}
        config = cls.load_config(model_name_or_path, **place)
        encoder = TransformerEncoder(**config.pop("model"))
        folder = cls.load_dir_path(model_name_or_path, **place)
        module = cls(encoder, AutoTokenizer.from_pretrained(folder, local_files_only=True), **config)
        loaded: TextEncoder = cls.load_torch_weights(model_name_or_path, **place, model=module)
        return loaded


def _expand(features: dict[str, Any], expansion: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Replace the padding of queries by mask tokens, as sentence-transformers' `Transformer` does."""
    mask: Tensor = features["attention_mask"]
    added = mask == 0
    token = expansion.get("token") or tokenizer.mask_token
    features["input_ids"] = features["input_ids"].masked_fill(added, tokenizer.convert_tokens_to_ids(token))
    features["query_expansion_positions"] = added
    if expansion.get("attend"):
        features["attention_mask"] = torch.ones_like(mask)
    else:
        features["attention_mask"] = mask
    return features


_SPECIAL_TOKENS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
_SPECIAL_TOKENS |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}


def train_tokenizer(
    texts: Iterable[str], vocabulary_size: int = 8192, *, lowercase: bool = True
) -> PreTrainedTokenizerFast:
    """Learn a WordPiece vocabulary, with the special tokens and the rules of BERT's tokenizer.

    Parameters
    ----------
    texts
        Texts like those to be searched. The same texts give the same vocabulary.
    vocabulary_size
        Maximum number of tokens, at least 200: five special ones, ASCII and other frequent characters, and word pieces.
        No word of ASCII letters and digits is unknown.
    lowercase
        Treat upper case as lower case, and drop accents.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
        The tokenizer, for a `TextEncoder`.

    Raises
    ------
    InvalidArgumentError
        If there is no word in the texts, if they are a single string or not texts, or the size is less than 200.

    Examples
    --------
    >>> tokenizer = train_tokenizer(["low lower lowest", "new newer newest"], 200)
    >>> tokenizer.tokenize("Newest, slow")
    ['newest', ',', 's', '##l', '##o', '##w']
    """
    check_count("vocabulary_size", vocabulary_size, 200)
    rules = _rules(WordPiece(unk_token="[UNK]"), lowercase)
    texts = list(checked_stream(texts))
    if not any(rules.pre_tokenizer.pre_tokenize_str(rules.normalizer.normalize_str(text)) for text in texts):
        raise InvalidArgumentError("received no words to learn a vocabulary from; expected a list of texts.")
    letters, punctuation = _alphabet(map(rules.normalizer.normalize_str, texts), vocabulary_size, lowercase)
    # The trainer numbers pieces of one letter in the order of a hash table, unless they are among the special tokens.
    # Ties between pairs of pieces are decided by these numbers.
    pieces = [*_SPECIAL_TOKENS.values(), *letters, *punctuation, *(f"##{letter}" for letter in letters)]
    alphabet = [*letters, *punctuation]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=pieces,
        show_progress=False,
    )
    rules.train_from_iterator(texts, trainer)
    tokenizer = _rules(WordPiece(rules.get_vocab(), unk_token="[UNK]"), lowercase)
    ends = ((token, tokenizer.get_vocab()[token]) for token in ("[SEP]", "[CLS]"))
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIAL_TOKENS)


def _rules(model: WordPiece, lowercase: bool) -> Tokenizer:
    """Return a tokenizer that splits words and punctuation as BERT's does."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _alphabet(texts: Iterable[str], vocabulary_size: int, lowercase: bool) -> tuple[list[str], list[str]]:
    """Return the characters that words consist of, and those that are words: of ASCII, and the most frequent others."""
    counts = Counter(chain.from_iterable(texts))
    ascii_letters = set(string.digits + (string.ascii_lowercase if lowercase else string.ascii_letters))
    others = sorted(set(counts) - set(string.printable), key=lambda each: (-counts[each], each))
    rest = vocabulary_size - len(_SPECIAL_TOKENS) - 2 * len(ascii_letters) - len(string.punctuation)
    others = [each for each in others if not each.isspace()][: max(rest // 4, 0)]
    is_word = {each: len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(f"a{each}")) > 1 for each in others}
    letters = sorted(ascii_letters.union(each for each in others if not is_word[each]))
    return letters, sorted({*string.punctuation, *(each for each in others if is_word[each])})
