"""Models that several tests only read: loading one takes longer than using it."""

import pytest
import torch
import transformers

from latelier.models import ColBERT

_SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2}
_SHAPE |= {"hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 120, "pad_token_id": 0}
_ARCHITECTURES = {
    "Bert": {},
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 101, "sep_token_id": 102},
    "Roberta": {},
    "XLMRoberta": {},
}


@pytest.fixture(scope="session")
def fresh(shallow):
    return ColBERT(shallow, embedding_size=16, device="cpu")


@pytest.fixture(scope="session")
def dense(shallow):
    return ColBERT.from_dense(shallow, device="cpu")


@pytest.fixture(scope="session")
def bert(minilm, tmp_path_factory):
    """Folder of a random BERT with MiniLM's tokenizer."""
    return _make_encoder("Bert", minilm, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session", params=_ARCHITECTURES)
def encoder_folder(request, minilm, tmp_path_factory):
    """Folder of a random encoder of one of the architectures with MiniLM's tokenizer."""
    return _make_encoder(request.param, minilm, tmp_path_factory.mktemp("encoder"))


def _make_encoder(name, minilm, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**_SHAPE, **_ARCHITECTURES[name], vocab_size=len(tokenizer))
    getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
