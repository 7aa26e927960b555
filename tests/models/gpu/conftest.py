"""Small random encoders of each architecture that is encoded without padding."""

import pytest
import torch
import transformers

SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2}
SHAPE |= {"hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 120, "pad_token_id": 0}
ARCHITECTURES = {
    "Bert": {},
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 101, "sep_token_id": 102},
    "Roberta": {},
    "XLMRoberta": {},
}


@pytest.fixture(scope="session")
def bert(minilm, tmp_path_factory):
    """Folder of a random BERT with MiniLM's tokenizer."""
    return make_encoder("Bert", minilm, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session", params=ARCHITECTURES)
def encoder_folder(request, minilm, tmp_path_factory):
    """Folder of a random encoder of one of the architectures with MiniLM's tokenizer."""
    return make_encoder(request.param, minilm, tmp_path_factory.mktemp("encoder"))


def make_encoder(name, minilm, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SHAPE, **ARCHITECTURES[name], vocab_size=len(tokenizer))
    getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
