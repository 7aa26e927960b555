"""`train_tokenizer`: a vocabulary of word pieces learned from one's own texts."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable
from itertools import chain

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from latelier.errors import InvalidArgumentError
from latelier.models.inputs import checked_stream
from latelier.utils import check_count

__all__ = ["train_tokenizer"]

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
    """Return the characters that words consist of, and those that are words: of ASCII, and the most frequent others.

    A letter takes two tokens, at the beginning of a word and within one; other letters take at most half of what ASCII
    leaves of the vocabulary.
    """
    counts = Counter(chain.from_iterable(texts))
    ascii_letters = set(string.digits + (string.ascii_lowercase if lowercase else string.ascii_letters))
    others = sorted(set(counts) - set(string.printable), key=lambda each: (-counts[each], each))
    rest = vocabulary_size - len(_SPECIAL_TOKENS) - 2 * len(ascii_letters) - len(string.punctuation)
    others = [each for each in others if not each.isspace()][: max(rest // 4, 0)]
    is_word = {each: len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(f"a{each}")) > 1 for each in others}
    letters = sorted(ascii_letters.union(each for each in others if not is_word[each]))
    return letters, sorted({*string.punctuation, *(each for each in others if is_word[each])})
