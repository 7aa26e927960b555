"""An adapter, a head of fewer dimensions and query weights for all-MiniLM-L6-v2: pairs, training, choice, and test.

    python benchmarks/smaller_model.py prepare out --data path/to/collections
    python benchmarks/smaller_model.py train out [--minutes 68]
    python benchmarks/smaller_model.py refine out --dims 192
    python benchmarks/smaller_model.py choose out --dims 192
    python benchmarks/smaller_model.py test out --dims 192 --data path/to/collections

`prepare` writes pairs of a heading, a sentence or headword with the text below it, from packages of Debian
(`_weak_pairs.py`), manual pages and docstrings of installed packages. What a test collection holds is left out. Five
sources are for validation alone. `train` encodes the pairs with all-MiniLM-L6-v2 and trains, in batches of neighbours:
matrices of low rank in its upper four layers, heads of 128 and 192 dimensions that start as principal directions, and a
weight of each query token for each head. The loss is the divergence from the distribution of the untrained model's
scores, and a share of the contrastive loss. It resumes where it was stopped. `refine` trains a head on alone. `choose`
measures shares of what was learned (WiSE-FT) on the validation sources; `test` looks at test queries.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _common import MEASURE, make_run
from _weak_pairs import Pair, clean, download, is_english, normalised, weak_pairs
from torch.nn.utils.rnn import pad_sequence

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, compare, evaluate, load_beir
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.scores import top_k

COLLECTIONS = ("scifact", "cranfield", "cisi", "vaswani", "debian")
PACKAGES = ("dict-gcide", "python3.11-doc", "debian-handbook", "opencv-doc", "rust-doc")
DOCSTRINGS = """
aiohttp datasets distro docutils fontTools haystack hypothesis IPython jinja2 langchain_core llama_index matplotlib mteb
nltk networkx numpy openai pandas PIL polars pydantic qdrant_client ray scipy sentence_transformers sklearn
sqlalchemy statsmodels sympy torch tornado traitlets transformers werkzeug
""".split()  # noqa: SIM905 (a list of strings would have a line for each)
HELD_OUT = ("documentation/python3.11-doc", "documentation/debian-handbook", "docstrings/sklearn", "manual/7")
EACH = 1200  # pairs of a package or a section of the manual
TRAINED_LAYERS, RANK = range(2, 6), 12
LINEARS = ("attention.self.query", "attention.self.key", "attention.self.value")
LINEARS += ("attention.output.dense", "intermediate.dense", "output.dense")
DIMS = (128, 192)
RATE, FAST_RATE, CONTRASTIVE, TEMPERATURE = 5e-4, 1e-2, 0.3, 0.5
SEEDS, NEIGHBOURS, DRAWN = 8, 16, 4  # of a batch: texts drawn, how near others come from, and how many of each
LONGEST, LONGEST_TEXT = 190, 900  # tokens and characters of a text that is trained on
WARM_UP, REFINED_STEPS = 40, 500  # steps
SHARES = (1.0, 0.75, 0.5)
SKIPPED = (
    "SEE ALSO",
    "AUTHOR",
    "AUTHORS",
    "COPYRIGHT",
    "SYNOPSIS",
    "COLOPHON",
    "BUGS",
    "HISTORY",
    "EXAMPLES",
    "LICENSE",
)


# Pairs


def docstring_pairs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the first line of each docstring of a package with the prose below it, twelve of a file."""
    files = sorted(file for file in folder.rglob("*.py") if "test" not in str(file))
    random.Random(0).shuffle(files)
    for file in files[:2500]:
        try:
            nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
        except (SyntaxError, ValueError):
            continue
        documented = [ast.get_docstring(node) or "" for node in nodes if not node.name.startswith("_")]
        for first, _, rest in (text.partition("\n\n") for text in documented[:12]):
            prose = re.split(r"\n\s*(?:Examples?|References|See Also)\s*\n", rest)[0]
            yield re.sub(r"[`*]|:\w+:", "", first), re.sub(r"[-=~]{3,}|>>>.*|\.\. \w+::|:\w+:|[`*]", "", prose)


def manual_pairs(section: str) -> Iterator[tuple[str, str]]:
    """Yield what the pages of a section of the manual say that they describe, or a heading, with the text below."""
    files = sorted(Path("/usr/share/man", f"man{section}").glob("*.gz"))
    random.Random(1).shuffle(files)
    for file in files[:6000]:
        page = gzip.decompress(file.read_bytes()).decode("utf-8", errors="replace")
        text = re.sub(r"\\f(?:\[\w*\]|\(..|.)|\\s[+-]?\d|\\[&|^/,:]", "", page)
        parts = re.split(r"^\.\s*S[hHsS]\s+(.*)$", text.replace("\\-", "-").replace("\\ ", " "), flags=re.MULTILINE)
        name, subject = file.name.split(".")[0], ""
        for heading, body in list(zip(parts[1::2], parts[2::2], strict=False))[:5]:
            heading = heading.strip().strip('"')
            prose = " ".join(line for line in body.splitlines() if line[:1] not in (".", "'"))
            if heading.upper() == "NAME":
                subject = re.sub(r"^.*?\s-+\s", "", prose).strip()
            elif heading.upper() == "DESCRIPTION":
                yield subject, prose
            elif heading.upper() not in SKIPPED:
                yield f"{name}: {subject}: {heading.lower()}", prose


def kept(source: str, raw: Iterator[tuple[str, str]]) -> list[Pair]:
    cleaned = (clean(Pair(source, *each)) for each in raw)
    return [pair for pair in cleaned if pair is not None and is_english(pair)][:EACH]


def is_validation(pair: Pair) -> bool:
    digest = hashlib.sha256(normalised(pair.query).encode()).digest()
    return pair.source in HELD_OUT or (pair.source == "dictionary/dict-gcide" and digest[0] % 10 == 0)


def prepare(options: argparse.Namespace) -> None:
    pairs = list(weak_pairs(download(PACKAGES, options.out / "packages", 600), 600, each=9000))
    for name in DOCSTRINGS:
        found = find_spec(name)
        for place in (found and found.submodule_search_locations) or []:
            pairs += kept(f"docstrings/{name}", docstring_pairs(Path(place)))
    for section in "1234578":
        pairs += kept(f"manual/{section}", manual_pairs(section))
    tested: set[str] = set()
    for name in COLLECTIONS:
        collection = load_beir(options.data / name, on_problem="skip")
        tested |= set(map(normalised, (*collection.queries.values(), *collection.texts().values())))
        tested |= {normalised(side) for document in collection.documents.values() for side in document.values()}
    by_query = {normalised(pair.query): pair for pair in reversed(pairs)}
    unique = list({normalised(pair.text): pair for pair in by_query.values()}.values())
    unique = [pair for pair in unique if not {normalised(pair.query), normalised(pair.text)} & tested]
    random.Random(0).shuffle(unique)
    for name, part in (("valid", True), ("train", False)):
        rows = [pair for pair in unique if is_validation(pair) is part]
        lines = [json.dumps(pair._asdict()) + "\n" for pair in rows]
        (options.out / f"{name}.jsonl").write_text("".join(lines))
        print(name, dict(Counter(pair.source for pair in rows)))


def read_pairs(file: Path) -> list[Pair]:
    return [Pair(**json.loads(line)) for line in file.read_text().splitlines()]


# Training


class LowRank(torch.nn.Module):
    """A linear layer, and the product of two small matrices beside it."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.up = torch.nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return both outputs, added."""
        return self.layer(vectors) + vectors @ self.down.T @ self.up.T


def padded(vectors: TokenEmbeddings, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors ``(n, tokens, dim)`` of some texts, and the bool mask ``(n, tokens)`` of those they have."""
    own = [torch.as_tensor(vectors[int(row)]).float() for row in rows]
    mask = pad_sequence([torch.ones(len(each), dtype=torch.bool) for each in own], batch_first=True)
    return pad_sequence(own, batch_first=True), mask


def log_relevance(
    queries: torch.Tensor, query_mask: torch.Tensor, documents: torch.Tensor, mask: torch.Tensor, scale: Any = 1.0
) -> torch.Tensor:
    """Return the logarithm of the distribution of each query's MaxSim over the documents ``(n, n)``."""
    (n, tokens, dim), (m, others, _) = queries.shape, documents.shape
    cosines = (queries.reshape(-1, dim) @ documents.reshape(-1, dim).T).view(-1, m, others).masked_fill(~mask, -1e4)
    best = cosines.max(2).values.view(n, tokens, m) * query_mask[:, :, None]
    return (best.sum(1) * scale / TEMPERATURE).log_softmax(1)


class Student:
    """The encoder with small matrices beside its linear layers, the heads and the weights; and its training texts."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        model = ColBERT.from_dense(DEFAULT_MODEL, device="cpu", max_length_document=224, max_length_query=64)
        sides = {"query": [pair.query for pair in pairs], "document": [pair.text for pair in pairs]}
        limits = {"query": model.max_length_query, "document": model.max_length_document}
        tokenizer: Any = model.tokenizer
        self.known, self.ids = {}, {}
        for task, texts in sides.items():
            self.known[task] = model.encode(texts, task=task, packed=True, precision="float16").to("numpy")
            self.ids[task] = tokenizer(texts, truncation=True, max_length=limits[task])["input_ids"]
        self.encoder: Any = model[0].model.eval().requires_grad_(False)
        torch.manual_seed(0)
        self.learned: dict[str, torch.nn.Parameter] = {}
        for place in (f"encoder.layer.{layer}.{name}" for layer in TRAINED_LAYERS for name in LINEARS):
            added = LowRank(self.encoder.get_submodule(place))
            self.encoder.set_submodule(place, added)
            self.learned |= {f"{place}.down": added.down, f"{place}.up": added.up}
        sample = torch.as_tensor(self.known["document"].vectors[:100_000]).double()
        self.directions = torch.linalg.eigh(sample.T @ sample).eigenvectors.flip(1).T.float()
        for dims in DIMS:
            self.learned[f"head{dims}"] = torch.nn.Parameter(self.directions[:dims].clone())
            self.learned[f"query{dims}"] = torch.nn.Parameter(torch.zeros(dims))
            self.learned[f"scale{dims}"] = torch.nn.Parameter(torch.zeros(()))

    def embed(self, task: str, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last hidden states of some texts, with gradients, and the mask of their tokens."""
        tokens = [torch.tensor(self.ids[task][row]) for row in rows]
        mask = pad_sequence([torch.ones_like(each) for each in tokens], batch_first=True)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.encoder(input_ids=pad_sequence(tokens, batch_first=True), attention_mask=mask)
        return hidden.last_hidden_state.float(), mask.bool()

    def loss(self, rows: np.ndarray) -> torch.Tensor:
        """Return the loss of a batch of pairs."""
        wanted = log_relevance(*padded(self.known["query"], rows), *padded(self.known["document"], rows))
        (queries, query_mask), (documents, mask) = self.embed("query", rows), self.embed("document", rows)
        loss = torch.zeros(())
        for dims in DIMS:
            head, scale = self.learned[f"head{dims}"], self.learned[f"scale{dims}"].exp()
            asked, found = (F.normalize(vectors @ head.T, dim=-1) for vectors in (queries, documents))
            weights = torch.exp(asked @ self.learned[f"query{dims}"]) * query_mask
            weights = weights / weights.sum(1, keepdim=True) * query_mask.sum(1, keepdim=True)
            scores = log_relevance(asked * weights[:, :, None], query_mask, found, mask, scale)
            loss = loss + F.kl_div(scores, wanted, reduction="batchmean", log_target=True)
            loss = loss + CONTRASTIVE * F.nll_loss(scores, torch.arange(len(rows)))
        return loss


def mean_vectors(texts: TokenEmbeddings) -> torch.Tensor:
    sums = np.add.reduceat(texts.vectors.astype("f4"), texts.offsets[:-1], axis=0)
    return F.normalize(torch.from_numpy(sums), dim=1)


class Neighbours:
    """Batches of texts that are near others of the batch, by their mean vectors; the step alone decides which."""

    def __init__(self, documents: TokenEmbeddings) -> None:
        self.usable = np.flatnonzero(documents.lengths <= LONGEST)
        self.means = mean_vectors(documents)[self.usable]

    def batch(self, step: int) -> np.ndarray:
        """Return the rows of a batch."""
        rng = np.random.default_rng((7, step))
        seeds = self.means[rng.choice(len(self.usable), SEEDS, replace=False)]
        near = (seeds @ self.means.T).topk(NEIGHBOURS).indices.numpy()
        drawn = [own[np.r_[0, 1 + rng.choice(NEIGHBOURS - 1, DRAWN - 1, replace=False)]] for own in near]
        return self.usable[np.unique(np.concatenate(drawn))]


def train(options: argparse.Namespace) -> None:
    pairs = [pair for pair in read_pairs(options.out / "train.jsonl") if len(pair.text) <= LONGEST_TEXT]
    student = Student(pairs[: options.pairs])
    neighbours = Neighbours(student.known["document"])
    fast = {name for name in student.learned if name.startswith(("query", "scale"))}
    groups = [
        {"params": [value for name, value in student.learned.items() if (name in fast) is own], "lr": rate}
        for own, rate in ((False, RATE), (True, FAST_RATE))
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0)
    state, file, seconds = {"step": 0, "used": 0.0}, options.out / "trained.pt", 60 * options.minutes
    if file.exists():
        stored = torch.load(file)
        state = stored["state"]
        optimizer.load_state_dict(stored["optimizer"])
        for name, value in student.learned.items():
            value.data.copy_(stored["learned"][name])
    begin, saved = time.time() - state["used"], time.time()
    while state["used"] < seconds:
        for group, rate in zip(optimizer.param_groups, (RATE, FAST_RATE), strict=True):
            group["lr"] = rate * min((state["step"] + 1) / WARM_UP, 1 - state["used"] / seconds)
        loss = student.loss(neighbours.batch(state["step"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = {"step": state["step"] + 1, "used": time.time() - begin}
        if state["step"] % 20 == 0:
            print(f"step {state['step']}, {state['used']:.0f} s: {loss.item():.4f}", flush=True)
        if time.time() - saved > 180 or state["used"] >= seconds:
            saved = time.time()
            values = {"directions": student.directions, **{k: v.detach() for k, v in student.learned.items()}}
            torch.save({"learned": values, "optimizer": optimizer.state_dict(), "state": state}, f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)


# Choice and test


class Adapted:
    """The encoder with a share of what was learned folded into it, a head, and weights of query tokens."""

    def __init__(self, learned: dict[str, torch.Tensor], dims: int, share: float) -> None:
        self.model = ColBERT.from_dense(DEFAULT_MODEL, device="cpu")
        encoder: Any = self.model[0].model
        with torch.no_grad():
            for name in [name.removesuffix(".down") for name in learned if name.endswith(".down")]:
                up, down = learned[f"{name}.up"].half().float(), learned[f"{name}.down"].half().float()
                encoder.get_submodule(name).weight += share * up @ down
        self.head = torch.lerp(learned["directions"][:dims], learned[f"head{dims}"], share).half().float()
        self.weights = share * learned[f"query{dims}"]

    def encode(self, texts: list[str], task: str) -> TokenEmbeddings:
        """Return token vectors; of queries, each multiplied by its weight."""
        encoded = self.model.encode(texts, task=task, packed=True)
        vectors = F.normalize(encoded.vectors.float() @ self.head.T, dim=1)
        if task == "query":
            vectors = vectors * torch.exp(vectors @ self.weights)[:, None]
        return TokenEmbeddings(vectors, encoded.offsets)


class Untrained:
    """all-MiniLM-L6-v2 as it is."""

    def __init__(self) -> None:
        self.model = ColBERT.from_dense(DEFAULT_MODEL, device="cpu")

    def encode(self, texts: list[str], task: str) -> TokenEmbeddings:
        """Return token vectors."""
        return self.model.encode(texts, task=task, packed=True).to("float32")


def refine(options: argparse.Namespace) -> None:
    """Let the head alone learn on from the scores of the adapted encoder; every second batch has texts as queries."""
    stored = torch.load(options.out / "trained.pt")
    learned, dims = stored["learned"], options.dims
    model = Adapted(learned, dims, 1.0).model
    pairs = [pair for pair in read_pairs(options.out / "train.jsonl") if len(pair.text) <= LONGEST_TEXT]
    sides = {"query": [pair.query for pair in pairs], "document": [pair.text for pair in pairs]}
    known, means = {}, {}
    for task, texts in sides.items():
        encoded = model.encode(texts[: options.pairs], task=task, packed=True, precision="float16").to("numpy")
        known[task], means[task] = encoded, mean_vectors(encoded)
    start = learned[f"head{dims}"]
    head, scale = torch.nn.Parameter(start.clone()), torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.AdamW([{"params": [head], "lr": 3e-4}, {"params": [scale], "lr": 1e-2}], weight_decay=0)
    rng = np.random.default_rng(0)
    for step in range(REFINED_STEPS):
        for group, rate in zip(optimizer.param_groups, (3e-4, 1e-2), strict=True):
            group["lr"] = rate * min((step + 1) / 20, 1 - step / REFINED_STEPS)
        task = ("query", "document")[step % 2]
        rows = rng.choice(len(means[task]), 24, replace=False)
        near = (means[task][rows] @ means["document"].T).topk(17).indices.numpy()
        others = np.unique(np.concatenate([near[:, 1], *(near[range(24), rng.choice(17, 24)] for _ in range(2))]))
        asked, asked_mask = (each[:, :96] for each in padded(known[task], rows))
        found, mask = padded(known["document"], others if task == "query" else np.setdiff1d(others, rows))
        # Scores grow with the tokens of a query; those of the pairs have 14.
        factor = 14 / asked_mask.sum(1).clamp(min=14)[:, None]
        wanted = log_relevance(asked, asked_mask, found, mask, factor)
        asked, found = (F.normalize(vectors @ head.T, dim=-1) for vectors in (asked, found))
        scores = log_relevance(asked, asked_mask, found, mask, factor * scale.exp())
        loss = F.kl_div(scores, wanted, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens = torch.as_tensor(known["query"].vectors[:120_000]).float()
    before, after = (F.normalize(tokens @ weight.T, dim=1) for weight in (start, head.detach()))
    weights = torch.linalg.lstsq(after, (before @ learned[f"query{dims}"])[:, None]).solution[:, 0]
    refined = {**learned, f"head{dims}": head.detach(), f"query{dims}": weights}
    torch.save({**stored, "learned": refined}, options.out / "refined.pt")


def validation_sets(pairs: Sequence[Pair]) -> dict[str, Collection]:
    """Return up to 500 texts of each source, and the queries of the first 200, which have one relevant text each."""
    collections = {}
    for source in dict.fromkeys(pair.source for pair in pairs):
        own = [pair for pair in pairs if pair.source == source][:500]
        documents = {str(i): {"title": "", "text": pair.text} for i, pair in enumerate(own)}
        queries = {str(i): pair.query for i, pair in enumerate(own[:200])}
        collections[source] = Collection(documents, queries, {id: {id: 1} for id in queries})
    return collections


def search(model: Adapted | Untrained, collection: Collection) -> dict[str, dict[str, float]]:
    """Return the run of exact search."""
    documents = model.encode(list(collection.texts().values()), "document")
    queries = model.encode(list(collection.queries.values()), "query")
    return make_run(collection, list(collection.documents), *top_k(queries, documents, k=10))


def choose(options: argparse.Namespace) -> None:
    collections = validation_sets(read_pairs(options.out / "valid.jsonl"))
    for file in ("trained.pt", "refined.pt"):
        for share in SHARES if (options.out / file).exists() else ():
            model = Adapted(torch.load(options.out / file)["learned"], options.dims, share)
            figures = [evaluate(search(model, own), own.qrels, [MEASURE])[MEASURE] for own in collections.values()]
            print(f"{file}, share {share}:", " ".join(f"{value:.4f}" for value in (*figures, np.mean(figures))))


def test(options: argparse.Namespace) -> None:
    learned = torch.load(options.out / options.file)["learned"]
    models = {"untrained": Untrained(), "adapted": Adapted(learned, options.dims, options.share)}
    for name in COLLECTIONS:
        collection = load_beir(options.data / name, on_problem="skip")
        runs = {kind: search(model, collection) for kind, model in models.items()}
        print(name, compare(runs["untrained"], runs["adapted"], collection.qrels, [MEASURE]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", "train", "refine", "choose", "test"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pairs", type=int, default=18_000)
    parser.add_argument("--minutes", type=float, default=68)
    parser.add_argument("--dims", type=int, choices=DIMS, default=192)
    parser.add_argument("--file", choices=["trained.pt", "refined.pt"], default="refined.pt")
    parser.add_argument("--share", type=float, default=1.0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    {"prepare": prepare, "train": train, "refine": refine, "choose": choose, "test": test}[given.step](given)
