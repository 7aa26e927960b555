"""`split_validation`: rows for training and for validation that share no passage and no question.

Whoever validates on passages that were trained on measures what was learned by heart. So rows are split by connected
components: questions and passages are the nodes, and each row connects its question to its positive.
"""

from __future__ import annotations

import math
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from latelier.data.loading import TrainingSet
from latelier.utils.checks import check_count, check_number

_LARGEST = 0.25  # share of the questions that a single component may have, if all are larger than the validation
# Fewer validation questions than half of those wanted are too few, unless they are at least so many.
_ENOUGH = 20
_NEAR = 0.75  # weighted Jaccard similarity of the words of questions that are near copies
_COMMON = 1000  # words in more questions lead to no candidates for near copies, which bounds the time


def text_key(text: str) -> str:
    """Return what equal texts share: normal form NFKC, lower case, and words with one space between them."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def positives(rows: TrainingSet) -> list[str]:
    """Return the positive of each row: the first document, or the one with the highest score of the teacher."""
    if rows.scores is None:
        return [documents[0] for documents in rows.documents]
    best = [max(range(len(scores)), key=scores.__getitem__) for scores in rows.scores]
    return [documents[i] for documents, i in zip(rows.documents, best, strict=True)]


def count_shared_positives(training: TrainingSet, validation: TrainingSet) -> tuple[int, int]:
    """Return how many different positives of the validation are positives of the training, and how many there are."""
    trained = set(map(text_key, positives(training)))
    measured = set(map(text_key, positives(validation)))
    return len(measured & trained), len(measured)


def split_validation(
    data: TrainingSet, queries: int = 200, seed: int = 0, *, share: float = 0.1
) -> tuple[TrainingSet, TrainingSet]:
    """Split off questions for validation, whose passages and near copies are not in the training rows.

    Rows are connected if they have the same positive, up to normal form, case and white space; positives that are
    passages of one document (`TrainingSet.groups`); the same question, up to case, marks and white space; or questions
    that are near copies: at least three quarters of their words are the same, weighted by
    ``log(questions / questions with the word)``. All rows of a connected component go to one side.

    Components that are too large for the validation are training rows. If the others hold too few questions, because
    most questions share passages, rows are split by questions alone, and `train` reports how many positives are on both
    sides.

    Parameters
    ----------
    data
        The rows. The positive is the first document, or the one with the highest score.
    queries
        Maximum number of questions for validation.
    seed
        Seed of the choice.
    share
        Maximum share of all questions; one component of up to a quarter is taken if all are larger than that.

    Returns
    -------
    tuple of TrainingSet
        Training and validation rows, each in the order of `data`.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range.

    Examples
    --------
    >>> questions = [f"{ask} thing {i}?" for i in range(10) for ask in ("what is", "who made")]
    >>> passages = [[f"Passage {i}."] for i in range(10) for _ in range(2)]
    >>> training, validation = split_validation(TrainingSet(questions, passages))
    >>> len(training), validation.queries
    (18, ['what is thing 7?', 'who made thing 7?'])
    """
    queries = check_count("queries", queries, 0)
    seed = check_count("seed", seed, 0)
    share = check_number("share", share, zero=True, most=1)
    by_question, by_passage = components_of(data)
    asked = list(data.queries)
    different = len(set(asked))
    wanted = min(queries, int(different * share + 1e-9))
    chosen = _choose(by_passage, asked, wanted, seed)
    if wanted and not chosen:
        chosen = _choose(by_passage, asked, min(queries, int(different * _LARGEST)), seed, components=1)
    held = len({question for question, component in zip(asked, by_passage, strict=True) if component in chosen})
    components = by_passage
    if held < min(wanted / 2, _ENOUGH):
        components = by_question
        chosen = _choose(by_question, asked, wanted, seed)
    is_chosen = np.fromiter((component in chosen for component in components), bool, len(data))
    return data.select(np.flatnonzero(~is_chosen).tolist()), data.select(np.flatnonzero(is_chosen).tolist())


def _choose(labels: list[int], asked: list[str], most: int, seed: int, components: int | None = None) -> set[int]:
    """Draw components with at most so many different questions in all, and at most so many components."""
    questions = defaultdict(set)
    for question, label in zip(asked, labels, strict=True):
        questions[label].add(question)
    shuffled = list(questions)
    random.Random(seed).shuffle(shuffled)
    chosen: set[int] = set()
    held = 0
    for label in shuffled:
        if held + len(questions[label]) <= most and len(chosen) != components:
            chosen.add(label)
            held += len(questions[label])
    return chosen


def components_of(data: TrainingSet) -> tuple[list[int], list[int]]:
    """Return the component of each row: by questions alone, and by questions and positives."""
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(_question_key(question), len(numbers)) for question in data.queries]
    sets = _DisjointSets(len(numbers))
    for one, other in _near_copies(list(numbers)):
        sets.join(one, other)
    by_question = [sets.find(place) for place in places]
    first: dict[Hashable, int] = {}
    for place, passage in zip(places, positives(data), strict=True):
        sets.join(place, first.setdefault(text_key(passage), place))
    for place, group in zip(places, data.groups or (), strict=False):
        if group is not None:
            sets.join(place, first.setdefault(("group", group), place))
    return by_question, [sets.find(place) for place in places]


class _DisjointSets:
    """Union-find over ``0 .. n - 1``; the representative of a set is its smallest member."""

    def __init__(self, n: int) -> None:
        self._parents = list(range(n))

    def find(self, member: int) -> int:
        while self._parents[member] != member:
            self._parents[member] = self._parents[self._parents[member]]
            member = self._parents[member]
        return member

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.find(one), self.find(other)))
        self._parents[high] = low


def _question_key(question: str) -> str:
    """Return the words of a question without case and marks; the question itself if it has no words."""
    return " ".join(_words(question)) or text_key(question)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text_key(text))


def _near_copies(questions: list[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of questions (as `_question_key` gives them) that are near copies, or equal but for spaces.

    Near copies have a common word within the rarest words of both, those before which stands less than a quarter of a
    question's weight: so only questions with such a word in common are compared.
    """
    joined: dict[str, int] = {}
    for i, question in enumerate(questions):
        first = joined.setdefault(question.replace(" ", ""), i)
        if first != i:
            yield first, i
    words = [set(question.split()) for question in questions]
    counts = Counter(word for own in words for word in own)
    weights = {word: math.log(len(questions) / count) for word, count in counts.items()}
    seen: dict[str, list[int]] = defaultdict(list)
    for i, own in enumerate(words):
        candidates: set[int] = set()
        for word in _rarest(own, weights):
            candidates.update(seen[word])
            if counts[word] <= _COMMON:
                seen[word].append(i)
        for other in sorted(candidates):
            if _weight(own & words[other], weights) >= _NEAR * _weight(own | words[other], weights):
                yield other, i


def _rarest(words: set[str], weights: dict[str, float]) -> Iterator[str]:
    """Yield the heaviest words, until more than a quarter of the weight stands before the next one."""
    room = (1 - _NEAR) * _weight(words, weights)
    passed = 0.0
    for word in sorted(words, key=lambda word: (-weights[word], word)):
        if passed > room or weights[word] == 0:
            return
        yield word
        passed += weights[word]


def _weight(words: Iterable[str], weights: dict[str, float]) -> float:
    return math.fsum(weights[word] for word in words)
