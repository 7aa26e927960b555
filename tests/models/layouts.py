"""Checkpoints as they are uploaded, with tiny random weights, and ColBERT's arithmetic written out for each of them."""

import json
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# White space around a text is no part of it; a line end is a token where a tokenizer reads bytes.
TEXTS = ["where do pears grow?", "  A pear (and a fig).\n", "", "x", "pears and figs grow on trees, and on trees " * 3]
CORPUS = ["where do pears grow? a pear and a fig on a tree.", string.printable, "naïve pears, trees & figs"] * 5
PUNCTUATION = tuple(string.punctuation)
ABSENT = object()

BERT = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def make_tokenizer(kind):
    specials, single, tokenizer, trainer = {
        "words": (BERT, "[CLS] $A [SEP]", Tokenizer(models.WordPiece(unk_token="[UNK]")), trainers.WordPieceTrainer),
        "bytes": (BERT, "[CLS] $A [SEP]", Tokenizer(models.BPE()), trainers.BpeTrainer),
        "bytes after BOS": (("<pad>", "<s>", "</s>"), "<s> $A", Tokenizer(models.BPE()), trainers.BpeTrainer),
        "bytes alone": (("<pad>", "<s>", "</s>"), None, Tokenizer(models.BPE()), trainers.BpeTrainer),
        "pieces": (
            ROBERTA,
            "<s> $A </s>",
            Tokenizer(models.Unigram()),
            partial(trainers.UnigramTrainer, unk_token="<unk>"),
        ),
    }[kind]
    if kind == "words":
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    elif kind == "pieces":
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    options = {"vocab_size": 400, "special_tokens": list(specials), "show_progress": False}
    if trainer is trainers.BpeTrainer:
        options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainer(**options))
    if single:
        used = [(token, tokenizer.token_to_id(token)) for token in single.split() if token != "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=used)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    if specials is BERT:
        names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    elif specials is ROBERTA:
        names |= {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
SIZES |= {"initializer_range": 0.2, "max_position_embeddings": 520}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("words", SIZES),
    "DistilBert": ("words", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "initializer_range": 0.2}),
    "ModernBert": ("bytes", {**SIZES, "local_attention": 8, "global_attn_every_n_layers": 2}),
    "XLMRoberta": ("pieces", {**SIZES, "type_vocab_size": 1}),
    "Xmod": ("pieces", {**SIZES, "type_vocab_size": 1, "languages": ["en_XX", "de_DE"], "default_language": "en_XX"}),
    "DebertaV2": (
        "pieces",
        {**SIZES, "relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"]}
        | {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0},
    ),
    "Llama": ("bytes after BOS", DECODER),
    "Qwen3": ("bytes alone", DECODER),
}


@dataclass(frozen=True)
class Head:
    """A linear layer of token vectors."""

    width: int = 16
    residual: bool = False
    activation: str = "linear.Identity"
    bias: bool = False


@dataclass(frozen=True)
class Layout:
    """What a checkpoint computes, in the order of queries and documents; and `write`, which writes its files."""

    write: Callable[["Layout", Any], None]
    encoder: str = "Bert"
    heads: tuple[Head, ...] = (Head(),)
    markers: tuple[str, str] = ("[Q] ", "[D] ")
    prompts: tuple[str, str] = ("", "")
    lengths: tuple[int, int] = (12, 24)
    expands: bool = True
    attends: bool = False
    skiplist: tuple[str, ...] = PUNCTUATION
    skips_in_queries: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    pad: str | None = None  # the token that is said to be the padding
    dtype: torch.dtype = torch.float32


class Checkpoint:
    """The parts of a checkpoint, and its vectors by hand."""

    def __init__(self, layout: Layout) -> None:
        kind, sizes = ENCODERS[layout.encoder]
        self.layout, self.tokenizer = layout, make_tokenizer(kind)
        names = ("pad", "cls", "sep", "bos", "eos")
        ids = {f"{name}_token_id": getattr(self.tokenizer, f"{name}_token_id") for name in names}
        torch.manual_seed(1)
        config = getattr(transformers, f"{layout.encoder}Config")(vocab_size=len(self.tokenizer), **{**ids, **sizes})
        self.encoder = getattr(transformers, f"{layout.encoder}Model")(config).eval()
        new = [
            marker for marker in dict.fromkeys(layout.markers) if marker and marker not in self.tokenizer.get_vocab()
        ]
        if new:
            before = len(self.tokenizer)
            self.tokenizer.add_tokens(new)
            self.encoder.resize_token_embeddings(len(self.tokenizer), mean_resizing=False)
            with torch.no_grad():
                self.encoder.get_input_embeddings().weight[before:] = random(9, len(new), config.hidden_size)
        if layout.pad is not None:
            self.tokenizer.pad_token = layout.pad or None
        self.encoder.to(layout.dtype)
        widths = [config.hidden_size, *(head.width for head in layout.heads)]
        self.heads = [
            {"linear.weight": random(i, head.width, width)}
            | ({"linear.bias": random(30 + i, head.width)} if head.bias else {})
            | ({"residual.weight": random(60 + i, head.width, width)} if head.residual and width != head.width else {})
            for i, (head, width) in enumerate(zip(layout.heads, widths, strict=False))
        ]

    @property
    def filler(self) -> int:
        mask = self.tokenizer.mask_token_id
        return self.tokenizer.eos_token_id if mask is None else mask

    @torch.no_grad()
    def by_hand(self, text: str, task: str) -> torch.Tensor:
        layout, side = self.layout, ("query", "document").index(task)
        length, marker = layout.lengths[side], layout.markers[side]
        prompted = layout.prompts[side] + text.strip()
        ids = self.tokenizer(prompted, truncation=True, max_length=length - bool(marker))["input_ids"]
        if marker:
            ids[1:1] = [self.tokenizer.convert_tokens_to_ids(marker)]
        mask = [1] * len(ids)
        if task == "query" and layout.expands:
            missing = length - len(ids)
            ids, mask = ids + [self.filler] * missing, mask + [int(layout.attends)] * missing
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}
        vectors = self.encoder(**inputs).last_hidden_state[0].float()
        for head, tensors in zip(layout.heads, self.heads, strict=True):
            given, vectors = vectors, vectors @ tensors["linear.weight"].T + tensors.get("linear.bias", 0)
            vectors = torch.tanh(vectors) if head.activation.endswith("Tanh") else vectors
            if head.residual:
                vectors += given @ tensors["residual.weight"].T if "residual.weight" in tensors else given
        skips = task == "document" or layout.skips_in_queries
        skipped = set(self.tokenizer.convert_tokens_to_ids(list(layout.skiplist))) if skips else set()
        vectors = vectors[[i for i, token in enumerate(ids) if token not in skipped]]
        return torch.nn.functional.normalize(vectors, dim=1)

    def write(self, folder) -> None:
        folder.mkdir()
        self.encoder.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        self.layout.write(self, folder)


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.2


def write_json(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({k: v for k, v in content.items() if v is not ABSENT} if isinstance(content, dict) else content)
    )


def pylate(built, folder, kind="pylate.models.Dense.Dense"):
    """Modules, and all settings in one file."""
    layout = built.layout
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for i, (head, tensors) in enumerate(zip(layout.heads, built.heads, strict=True), 1):
        config = {"in_features": tensors["linear.weight"].shape[1], "out_features": head.width, "bias": head.bias}
        config |= {"activation_function": f"torch.nn.modules.{head.activation}", "use_residual": head.residual}
        write_json(folder / f"{i}_Dense" / "config.json", config)
        save_file(tensors, folder / f"{i}_Dense" / "model.safetensors")
        modules.append({"idx": i, "name": str(i), "path": f"{i}_Dense", "type": kind})
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": layout.lengths[1] - 1, "do_lower_case": False})
    settings = {
        "model_type": "ColBERT",
        "prompts": dict(zip(("query", "document"), layout.prompts, strict=True)),
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": layout.markers[0],
        "document_prefix": layout.markers[1],
        "query_length": layout.lengths[0],
        "document_length": layout.lengths[1],
        "attend_to_expansion_tokens": layout.attends,
        "skiplist_words": list(layout.skiplist),
        "do_query_expansion": layout.expands,
    }
    write_json(folder / "config_sentence_transformers.json", {**settings, **layout.settings})


def stanford(built, folder, architecture="HF_ColBERT", pickled=False, more=()):
    layout, path = built.layout, folder / "model.safetensors"
    weights = {f"bert.{name}": tensor for name, tensor in load_file(path).items()}
    weights |= {**built.heads[0], **{name: random(5, *shape) for name, shape in more}}
    path.unlink()
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "architectures": [architecture]})
    metadata = {
        "query_token_id": layout.markers[0],
        "doc_token_id": layout.markers[1],
        "query_maxlen": layout.lengths[0],
        "doc_maxlen": layout.lengths[1],
        "mask_punctuation": bool(layout.skiplist),
        "attend_to_mask_tokens": layout.attends,
        "dim": layout.heads[0].width,
        "similarity": "cosine",
    }
    write_json(folder / "artifact.metadata", {**metadata, **layout.settings})


def neural_cherche(built, folder):
    torch.save({"weight": built.heads[0]["linear.weight"]}, folder / "linear.pt")
    metadata = {}
    for task, length, prefix in zip(("query", "document"), built.layout.lengths, built.layout.prompts, strict=True):
        metadata |= {f"max_length_{task}": length, f"{task}_prefix": prefix}
    write_json(folder / "metadata.json", metadata)


def bge_m3(built, folder):
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_cls_token": True})
    write_json(folder / "config_sentence_transformers.json", {"__version__": {"sentence_transformers": "2.2.2"}})
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": built.layout.lengths[1], "do_lower_case": False}
    )
    torch.save(
        {name.removeprefix("linear."): each for name, each in built.heads[0].items()}, folder / "colbert_linear.pt"
    )


def sentence_transformers_6(built, folder):
    layout, head = built.layout, built.layout.heads[0]
    encoder = Transformer(str(folder))
    encoder.document_length = layout.lengths[1]
    encoder.query_expansion = {
        "strategy": "fixed",
        "attend": layout.attends,
        "length": layout.lengths[0],
        "token": None,
    }
    dense = Dense(
        32, head.width, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
    )
    dense.load_state_dict(built.heads[0])
    modules = [encoder, dense, MultiVectorMask(skiplist_words=list(layout.skiplist)), Normalize("token_embeddings")]
    prompts = dict(zip(("query", "document"), layout.prompts, strict=True))
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save(str(folder))
    path = folder / "config_sentence_transformers.json"
    write_json(path, {**json.loads(path.read_text()), **layout.settings})
    write_json(folder / "preprocessor_config.json", {"processor_class": "PreTrainedTokenizerFast"})


NO_EXPANSION = {"encoder": "ModernBert", "expands": False}
UNUSED = {"markers": ("[unused0]", "[unused1]")}
# By the checkpoints that have them.
LAYOUTS: dict[str, Layout] = {
    "colbert-ko: PyLate 1.6": Layout(pylate),
    "lightonai/colbertv2.0: PyLate before 1.3": Layout(
        pylate, settings={"model_type": ABSENT, "do_query_expansion": ABSENT}
    ),
    "PyLate, no prefixes named": Layout(pylate, settings={"query_prefix": ABSENT, "document_prefix": ABSENT}),
    "colbert-ko-en-v2: no prefixes": Layout(pylate, markers=("", "")),
    "PyLate, other words skipped, attends": Layout(pylate, attends=True, skiplist=("pears", "and", "notaword")),
    "PyLate, activation and bias": Layout(
        partial(pylate, kind="sentence_transformers.models.Dense"),
        heads=(Head(32, residual=True, activation="activation.Tanh", bias=True), Head(16)),
    ),
    "GTE-ModernColBERT": Layout(pylate, **NO_EXPANSION, pad="[MASK]"),
    "LateOn: residuals": Layout(
        pylate,
        **NO_EXPANSION,
        pad="[MASK]",
        skiplist=(),
        heads=(Head(64, residual=True), Head(32, residual=True), Head()),
    ),
    "LateOn, equal widths": Layout(pylate, heads=(Head(32, residual=True), Head(12))),
    "mxbai-edge-colbert: two layers": Layout(pylate, **NO_EXPANSION, heads=(Head(48), Head(12))),
    "ColBERT-Zero: markers and prompts": Layout(
        pylate, **NO_EXPANSION, prompts=("search_query: ", "search_document: ")
    ),
    "LFM2-ColBERT: decoder, bfloat16": Layout(pylate, encoder="Llama", dtype=torch.bfloat16),
    "decoder, no padding token": Layout(pylate, encoder="Llama", pad=""),
    "pplx-embed-late: no BOS": Layout(pylate, encoder="Qwen3", attends=True),
    "colbert-xm: language adapters": Layout(pylate, encoder="Xmod"),
    "XLM-RoBERTa": Layout(pylate, encoder="XLMRoberta", expands=False),
    "DeBERTa": Layout(pylate, encoder="DebertaV2"),
    "DistilBERT": Layout(pylate, encoder="DistilBert"),
    "colbert-ir/colbertv2.0": Layout(stanford, **UNUSED),
    "answerai-colbert-small": Layout(stanford, **UNUSED, heads=(Head(12),), settings={"triples": "/x.json"}),
    "Stanford, null is absent": Layout(
        stanford, **UNUSED, settings={"mask_punctuation": None, "attend_to_mask_tokens": None}
    ),
    "duqgen-colbert: ColBERT, a pickle": Layout(partial(stanford, architecture="ColBERT", pickled=True), **UNUSED),
    "jina-colbert-v2": Layout(stanford, markers=("[QueryMarker]", "[DocumentMarker]"), attends=True, skiplist=()),
    "colbert-ko-0.1b: several heads": Layout(partial(stanford, more=[("colbert_linear_8.weight", (8, 32))]), **UNUSED),
    "neural-cherche": Layout(neural_cherche, markers=("", ""), prompts=("[Q] ", "[D] "), skiplist=()),
    "BAAI/bge-m3": Layout(
        bge_m3,
        "XLMRoberta",
        heads=(Head(32, bias=True),),
        markers=("", ""),
        lengths=(24, 24),
        expands=False,
        skiplist=("<s>",),
        skips_in_queries=True,
    ),
    "sentence-transformers 6": Layout(
        sentence_transformers_6, markers=("", ""), prompts=("find: ", ""), settings={"requirements": {"torch": ">=2"}}
    ),
}
