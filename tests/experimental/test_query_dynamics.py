"""One step of `QueryDynamics` against loops over rows; what training, saving and padding must not change."""

import pytest
import torch
from safetensors.torch import save_file

from latelier.errors import InvalidArgumentError, StorageError
from latelier.experimental import QueryDynamics
from naive import ragged


def make(seed=0, **arguments):
    torch.manual_seed(seed)
    dynamics = QueryDynamics(**{"dim": 8, "query_rows": 5, "document_rows": 6, "channels": 4, **arguments})
    for parameter in (*dynamics.weights.parameters(), *dynamics.dynamics.fc_reward_head[-1].parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    return dynamics.eval()


def naive_step(dynamics, query, document):
    """The next query matrix of one query, row by row; a document is cut to the rows that are read."""
    document = document[: dynamics.document_rows]
    encoding = torch.zeros(dynamics.query_rows + dynamics.document_rows, dynamics.dynamics.num_channels)
    channels = dynamics.projection.out_features
    rows, actions = {}, {}
    for i in range(dynamics.query_rows):
        encoding[i, -1] = 1
        if i < len(query):
            best = max(range(len(document)), key=lambda j: float(query[i] @ document[j]))
            rows[i], actions[i] = query[i], document[best]
            encoding[i, :channels] = dynamics.projection(query[i])
            encoding[i, channels:-2] = dynamics.projection(document[best])
            encoding[i, -2] = query[i] @ document[best]
    for j, token in enumerate(document):
        i = dynamics.query_rows + j
        rows[i], actions[i] = torch.zeros(8), token
        encoding[i, channels:-2] = dynamics.projection(token)
        encoding[i, -2] = max(float(q @ token) for q in query)
    latent, _, logits = dynamics.dynamics(encoding.T[None, :, :, None])
    changed = []
    for i in rows:
        keep, add = dynamics.weights(latent[0, :, i, 0])
        changed.append((1 + keep) * rows[i] + add * actions[i])
    changed = torch.stack(changed)
    return changed * query.norm() / changed.norm(), logits[0]


def test_one_step_is_that_of_a_loop_over_rows():
    dynamics = make()
    queries, documents = ragged([3, 5, 1], seed=1), ragged([6, 1, 9], seed=2)  # as long as can be, one token, too long
    state = dynamics(dynamics.begin(queries), documents)
    for i, (query, document) in enumerate(zip(queries, documents, strict=True)):
        expected, logits = naive_step(dynamics, query, document)
        torch.testing.assert_close(state.queries()[i], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.logits[i], logits, rtol=1e-4, atol=1e-5)


def test_the_second_step_adds_to_the_rows_of_the_first():
    dynamics = make()
    queries, documents = ragged([3, 2], seed=1), ragged([4, 2], seed=2)
    first = dynamics(dynamics.begin(queries), documents)
    second = dynamics(first, documents[::-1])
    assert second.queries().lengths.tolist() == [3 + 4 + 2, 2 + 2 + 4]
    assert torch.isfinite(second.value_prefix).all()
    assert not torch.equal(second.hidden[0], first.hidden[0])
    for query, before in zip(second.queries(), queries, strict=True):
        torch.testing.assert_close(query.norm(), before.norm())
    alone = dynamics(first.select([1]), documents[:1])
    torch.testing.assert_close(alone.queries()[0], second.queries()[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone.value_prefix, second.value_prefix[1:], rtol=1e-4, atol=1e-5)


def test_a_document_or_a_query_without_tokens_changes_nothing_else():
    dynamics, queries = make(), ragged([3, 0, 2], seed=1)
    state = dynamics(dynamics.begin(queries), ragged([0, 4, 6], seed=2))
    assert state.queries().lengths.tolist() == [3, 0, 2 + 6]
    assert all(torch.isfinite(part).all() for part in (state.queries().vectors, state.logits, *state.hidden))
    alone = dynamics(dynamics.begin(queries[2:]), ragged([0, 4, 6], seed=2)[2:])
    torch.testing.assert_close(state.queries()[2], alone.queries()[0], rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter_and_the_query():
    dynamics = make().train()
    queries = [query.requires_grad_() for query in ragged([3, 5], seed=1)]
    state = dynamics.begin(queries)
    for seed in (2, 3):
        state = dynamics(state, ragged([6, 2], seed=seed))
    loss = state.queries().vectors.cos().sum() + dynamics.value_loss(state, torch.tensor([0.5, -0.25]))
    loss.backward()
    assert [name for name, one in dynamics.named_parameters() if one.grad is None or not one.grad.any()] == []
    assert all(query.grad.any() for query in queries)


def test_saving_keeps_every_number(tmp_path):
    dynamics = make(num_res_blocks=2, lstm_hidden_size=7)
    path = tmp_path / "reader.safetensors"
    dynamics.save(path)
    loaded = QueryDynamics.load(path)
    assert repr(loaded) == repr(dynamics)
    assert not loaded.training
    queries, documents = ragged([3, 5], seed=1), ragged([6, 2], seed=2)
    before, after = (one(one.begin(queries), documents) for one in (dynamics, loaded))
    assert after.queries() == before.queries()
    assert torch.equal(after.logits, before.logits)
    assert [file.name for file in tmp_path.iterdir()] == ["reader.safetensors"]


def test_files_that_are_none_of_ours_are_rejected(tmp_path):
    path = tmp_path / "reader.safetensors"
    with pytest.raises(InvalidArgumentError, match="No such file"):
        QueryDynamics.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidArgumentError, match="not a whole file"):
        QueryDynamics.load(path)
    written = {"latelier": "QueryDynamics", "version": "1"}
    for metadata in (None, {**written, "version": "2"}):
        save_file({"a": torch.zeros(1)}, path, metadata=metadata)
        with pytest.raises(InvalidArgumentError, match="none of this version"):
            QueryDynamics.load(path)
    for arguments in ('{"dim": 8}', '{"dims": 8}', "{"):
        save_file({"a": torch.zeros(1)}, path, metadata={**written, "arguments": arguments})
        with pytest.raises(InvalidArgumentError, match="not a whole file"):
            QueryDynamics.load(path)
    with pytest.raises(StorageError, match="could not write"):
        make().save(tmp_path / "no folder" / "reader.safetensors")
