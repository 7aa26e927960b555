"""``latelier rerank``: order the documents of a run by MaxSim, from their texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from latelier import evaluation
from latelier.cli.options import DeviceOption, TrustOption, refuse_unused
from latelier.cli.output import quiet_loading
from latelier.errors import InvalidArgumentError
from latelier.evaluation.checks import OnProblem
from latelier.evaluation.collection import read_texts
from latelier.evaluation.files import check_run_file, read_candidates
from latelier.utils.misc import progress_bar

if TYPE_CHECKING:
    from latelier.retrieve.query_model import QueryModel

_AT_ONCE = 4000  # documents whose vectors are in memory together
_BATCH_SIZE = 32


def rerank(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run in any format, or lines of query id, id, query and text.")
    ],
    data: Annotated[
        Path | None,
        typer.Argument(metavar="DATA", help="Folder of the collection, or irds:NAME; not for a RUN with texts."),
    ] = None,
    *,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="Write the run: JSON Lines to a .jsonl[.gz] file, else TREC.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Model name or folder, or exported encoder; default: all-MiniLM-L6-v2 untrained.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", min=1, help="Best documents of each query to rerank and write; default: all."),
    ] = None,
    split: Annotated[
        str, typer.Option(help="For files of queries by split, such as queries.dev.tsv: test, dev, ...")
    ] = "test",
    on_problem: Annotated[OnProblem, typer.Option(help="Faulty lines of the collection: stop, or skip them.")] = "stop",
    device: DeviceOption = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Order the documents that another system has found by their MaxSim scores, and write a run.

    RUN names documents, whose texts and queries are in DATA; or it is a file such as MS MARCO's top1000.dev, with the
    texts of queries and passages in each line. No index is needed.

    \b
    Example:
      latelier rerank bm25.trec ./scifact --output reranked.trec
      latelier evaluate ./scifact --run reranked.trec
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.retrieve.choice import Asked
    from latelier.retrieve.query_model import open_model

    candidates = read_candidates(run)
    found = {query: [id for id, _ in evaluation.ranking(scores)[:k]] for query, scores in candidates.run.items()}
    wanted = {id for ids in found.values() for id in ids}
    if candidates.queries:
        if data is not None:
            raise typer.BadParameter(f"{run} holds texts of its own; leave DATA out.", param_hint="DATA")
        refuse_unused(context, ("split", "on_problem"), f"has no effect on {run}, which holds texts")
        texts = _Texts(candidates.queries, candidates.documents)
    elif data is None:
        raise typer.BadParameter(f"{run} holds ids; give the collection with their texts.", param_hint="DATA")
    else:
        texts = _Texts(*read_texts(data, split, found, wanted, on_problem=on_problem))
    _check_texts(found, wanted, texts, run, data)
    check_run_file(output, found, wanted)
    quiet_loading()
    encoder = open_model(Asked(model, device=device, trusts_code=trust_remote_code))
    evaluation.write_run(_reranked(encoder, found, texts), output)
    name = encoder.settings["model"]
    typer.echo(f"{output}: {len(wanted):,} documents of {len(found):,} queries, reranked with {name}.")


class _Texts(NamedTuple):
    """The texts of queries and of documents by id."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]


def _check_texts(
    found: Mapping[str, Sequence[str]], wanted: set[str], texts: _Texts, run: Path, data: Path | None
) -> None:
    """Check that all queries and documents of a run have texts."""
    for kind, ids, known in (("queries", found, texts.queries), ("documents", wanted, texts.documents)):
        lacking = sorted(id for id in ids if id not in known)
        if lacking:
            raise InvalidArgumentError(
                f"{len(lacking):,} of {len(ids):,} {kind} of {run}, such as {lacking[0]!r}, have no text in {data}."
            )


def _reranked(model: QueryModel, found: Mapping[str, list[str]], texts: _Texts) -> dict[str, dict[str, float]]:
    """Return the scores of the documents of each query; those of several queries are encoded once where they fit."""
    from latelier.rank import rerank as order

    run: dict[str, dict[str, float]] = {}
    total = sum(len({id for query in block for id in found[query]}) for block in _blocks(found))
    with progress_bar(shown=True, total=total, desc="Encoding") as bar:
        for block in _blocks(found):
            ids = list(dict.fromkeys(id for query in block for id in found[query]))
            vectors: dict[str, Any] = {}
            for start in range(0, len(ids), 512):
                part = ids[start : start + 512]
                encoded = model.encode_documents([texts.documents[id] for id in part], batch_size=_BATCH_SIZE)
                vectors |= dict(zip(part, encoded, strict=True))
                bar.update(len(part))
            queries = model.encode_queries([texts.queries[query] for query in block])
            lists = [found[query] for query in block]
            ordered = order(lists, list(queries), [[vectors[id] for id in each] for each in lists])
            run |= {query: {hit.id: hit.score for hit in hits} for query, hits in zip(block, ordered, strict=True)}
    return run


def _blocks(found: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield the queries in blocks that share few enough documents to hold the vectors of all of them."""
    block: list[str] = []
    ids: set[str] = set()
    for query, documents in found.items():
        if block and len(ids | {*documents}) > _AT_ONCE:
            yield block
            block = []
            ids = set()
        block.append(query)
        ids.update(documents)
    if block:
        yield block
