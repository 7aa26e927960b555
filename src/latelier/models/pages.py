"""Models of page images as colpali-engine saves them: the encoder, a head with a bias, and what stands around inputs.

The head's dimension is that of its weights. An adapter is added to the weights of the model that it names.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import transformers
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.models.checkpoint import ADAPTER, Checkpoint
from latelier.models.foreign_layouts import token_layer
from latelier.models.location import without_weight_bars
from latelier.models.weights import refuse_missing, refuse_unused

_ENGINE = "Convert it with colpali-engine, or take a checkpoint in transformers' own layout (*ForRetrieval)."
_QWEN_PROMPT = "<|im_start|>user\n<|vision_start|>{image}<|vision_end|>Describe the image.<|im_end|><|endoftext|>"
_TILES_PROMPT = "User:{image}Describe the image.<end_of_utterance>\nAssistant:"
_QUERY_SUFFIX = 10  # augmentation tokens behind a query


class Family(NamedTuple):
    """What a family of models puts around pictures and queries.

    `classes`: in config.json's architectures; `model_type`: of its encoder; `prompt`: around a picture; `suffix`: the
    token behind queries, None for that of padding; `renames`: from names in the file to those of the encoder.
    """

    classes: tuple[str, ...]
    model_type: str
    prompt: str
    suffix: str | None
    renames: Mapping[str, str]


_OF_QWEN = {
    r"^model\.(layers|embed_tokens|norm)\b": r"language_model.\1",
    r"^model\.(visual|language_model|custom_text_proj)\.": r"\1.",
}
FAMILIES = {
    "colpali": Family(
        ("ColPali",),
        "paligemma",
        "{image}<bos><bos>Describe the image.\n",
        None,
        {
            r"^model\.model\.": "",
            r"^model\.language_model\.model\.": "language_model.",
            r"^model\.(language_model|vision_tower|multi_modal_projector)\.": r"\1.",
        },
    ),
    "colqwen2": Family(("ColQwen2",), "qwen2_vl", _QWEN_PROMPT, "<|endoftext|>", _OF_QWEN),
    "colqwen2.5": Family(("ColQwen2_5",), "qwen2_5_vl", _QWEN_PROMPT, "<|endoftext|>", _OF_QWEN),
    "colqwen3": Family(("ColQwen3",), "qwen3_vl", _QWEN_PROMPT, "<|endoftext|>", _OF_QWEN),
    "colqwen3.5": Family(("ColQwen3_5",), "qwen3_5", _QWEN_PROMPT, "<|endoftext|>", _OF_QWEN),
    "colidefics3": Family(
        ("ColIdefics3",), "idefics3", f"<|im_start|>{_TILES_PROMPT}", "<end_of_utterance>", {r"^model\.": ""}
    ),
    "colmodernvbert": Family(
        ("ColModernVBert",), "modernvbert", f"<|begin_of_text|>{_TILES_PROMPT}", "<end_of_utterance>", {r"^model\.": ""}
    ),
}
_HEADS = ("custom_text_proj", "linear")
# Classes of the engine that are not read, and those of other authors that are called alike.
_CLASS = re.compile(r"^(Col|Bi)[A-Z]\w*?(?<!ForRetrieval)$", re.ASCII)


class PageEncoder(Transformer):
    """The encoder of a model that colpali-engine saved: one vector per token of a text or of a picture.

    `family`: what is put around pictures and queries, a key of `FAMILIES`. `built`: the encoder, where it was built
    already: the folder then holds its configuration and processor only.
    """

    config_keys: list[str] = [*Transformer.config_keys, "family"]  # noqa: RUF012 (as in its base class)

    def __init__(self, model_name_or_path: str, *, family: str, built: Any = None, **kwargs: Any) -> None:
        self._built = (built,)  # a module cannot be stored before nn.Module is initialised
        how = {"method": "forward", "method_output_name": "last_hidden_state"}
        kwargs |= {"modality_config": {"text": how, "image": how}, "module_output_name": "token_embeddings"}
        super().__init__(model_name_or_path, **kwargs)
        self._built = (None,)
        self.family = family
        processor: Any = self.processor
        processor.tokenizer.padding_side = "left"

    def _load_model(self, *args: Any, **kwargs: Any) -> Any:
        if self._built[0] is not None:
            return self._built[0]
        return super()._load_model(*args, **kwargs)

    def preprocess(  # type: ignore[override]
        self, inputs: Any, prompt: str | None = None, *, task: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Turn texts, or pictures, into features, as colpali-engine's processor of the family does.

        `prompt`: what to put before each text. `task`: texts get the family's augmentation tokens, as queries do,
        unless it is ``"document"``.
        """
        if kwargs.get("max_length") is not None or kwargs.get("processing_kwargs"):
            raise InvalidArgumentError("a model of page images takes neither max_length nor processing_kwargs.")
        if not inputs:
            return {}
        values = [next(iter(each.values())) if isinstance(each, dict) and len(each) == 1 else each for each in inputs]
        if all(isinstance(value, str) for value in values):
            features = self._texts([f"{prompt or ''}{value}" for value in values], is_query=task != "document")
            return {**features, "modality": "text"}
        if not all(hasattr(value, "getbands") for value in values):
            raise InvalidArgumentError("received texts and pictures, or pairs of both, for a model that reads either.")
        return {**self._pictures([value.convert("RGB") for value in values]), "modality": "image"}

    def _texts(self, texts: list[str], *, is_query: bool) -> dict[str, Any]:
        tokenizer: Any = self.tokenizer
        is_colpali = self.family == "colpali"
        if is_query:
            suffix = FAMILIES[self.family].suffix or tokenizer.pad_token
            texts = [text + suffix * _QUERY_SUFFIX for text in texts]
        if is_colpali:
            texts = [tokenizer.bos_token + text for text in texts]
        options = {"return_tensors": "pt", "padding": "longest", "return_token_type_ids": False}
        return dict(tokenizer(texts, add_special_tokens=not is_colpali, **options))

    def _pictures(self, pictures: list[Any]) -> dict[str, Any]:
        processor: Any = self.processor
        tokenizer: Any = self.tokenizer
        around = FAMILIES[self.family].prompt
        options = {"return_tensors": "pt", "padding": "longest"}
        if isinstance(processor, transformers.Idefics3Processor):  # whose pictures are rows of tiles
            text = around.format(image=processor.image_token)
            return dict(processor(text=[text] * len(pictures), images=[[each] for each in pictures], **options))
        features = dict(processor.image_processor(images=pictures, return_tensors="pt"))
        if "image_grid_thw" in features:
            merged = processor.image_processor.merge_size**2
            counts = [int(grid.prod()) // merged for grid in features["image_grid_thw"]]
        else:
            counts = [processor.image_seq_length] * len(pictures)
        texts = [around.format(image=processor.image_token * count) for count in counts]
        tokens = dict(tokenizer(texts, add_special_tokens=self.family != "colpali", **options))
        if self.family == "colpali":
            tokens["token_type_ids"] = torch.zeros_like(tokens["input_ids"])
        else:
            tokens["mm_token_type_ids"] = (tokens["input_ids"] == processor.image_token_id).long()
        return {**features, **tokens}


def read_pages(checkpoint: Checkpoint) -> list[nn.Module] | None:
    """Return the pipeline of a model, or an adapter, that colpali-engine saved; None for other checkpoints."""
    adapter = checkpoint.read("adapter_config.json")
    base = checkpoint
    if adapter:
        base = Checkpoint(str(adapter.get("base_model_name_or_path")), {**checkpoint.options, "revision": None})
    config = base.read("config.json")
    named = [str(each) for each in config.get("architectures") or []]
    family = next((name for name, each in FAMILIES.items() if set(each.classes) & set(named)), None)
    if family is None:
        if any(_CLASS.match(each) and "bert" not in each.lower() for each in named) and "auto_map" not in config:
            known = ", ".join(each for known in FAMILIES.values() for each in known.classes)
            reason = f"its class {named[0]!r:.60} is one of colpali-engine, of which {known} are read."
            raise ModelLoadError(checkpoint.name, ValueError(reason), cure=_ENGINE)
        return None
    return _build(checkpoint, base, family, config, adapter)


def _build(
    checkpoint: Checkpoint, base: Checkpoint, family: str, settings: Mapping[str, Any], adapter: Mapping[str, Any]
) -> list[nn.Module]:
    """Return encoder, head, mask and normalisation, with the weights of `base` and the adapter's in `checkpoint`."""
    saved = {_renamed(name, family): each for name, each in base.tensors(base.shapes()).items()}
    if adapter:
        _merge_adapter(saved, checkpoint, adapter, family)
    heads = {name: saved.pop(name) for name in list(saved) if name.split(".")[0] in _HEADS}
    weights = [name for name in heads if name in {f"{head}.weight" for head in _HEADS}]
    biases = [name for name in heads if name in {f"{head}.bias" for head in _HEADS}]
    if len(weights) != 1 or len(biases) > 1 or len(heads) > 2:
        raise ModelLoadError(checkpoint.name, ValueError(f"its head is {sorted(heads)}, not one layer."), cure=_ENGINE)
    place = {key: value for key, value in base.place.items() if key != "cache_folder"}
    place["cache_dir"] = base.place["cache_folder"]
    config = transformers.AutoConfig.from_pretrained(base.name, **place)
    given = (checkpoint.options.get("model_kwargs") or {}).get("dtype")
    if given in (None, "auto"):
        dtype = heads[weights[0]].dtype
    else:
        dtype = given
    kind: Any = transformers.MODEL_MAPPING[type(config)]
    inside = {name: each for name, each in saved.items() if not name.startswith("lm_head.")}
    with without_weight_bars():
        encoder, report = kind.from_pretrained(
            None, config=config, state_dict=inside, output_loading_info=True, dtype=dtype
        )
    refuse_missing(checkpoint.name, sorted(report["missing_keys"]))
    unused = {name: () for name in sorted(report["unexpected_keys"])}
    refuse_unused(checkpoint.name, unused, "which no module takes")
    with tempfile.TemporaryDirectory() as folder:
        encoder.config.save_pretrained(folder)
        _processor(checkpoint if _has_processor(checkpoint) else base, family).save_pretrained(folder)
        module = PageEncoder(folder, family=family, built=encoder)
    head = token_layer(heads[weights[0]].float(), heads[biases[0]].float() if biases else None)
    if settings.get("mask_non_image_embeddings"):
        raise ModelLoadError(checkpoint.name, ValueError("it keeps the vectors of patches alone."), cure=_ENGINE)
    return [module, head, MultiVectorMask(), Normalize(module_input_name="token_embeddings")]


def _renamed(name: str, family: str) -> str:
    name = name.removeprefix("base_model.model.")
    for pattern, replacement in FAMILIES[family].renames.items():
        found, count = re.subn(pattern, replacement, name)
        if count:
            return found
    return name


def _has_processor(checkpoint: Checkpoint) -> bool:
    return any(checkpoint.path(file) for file in ("processor_config.json", "preprocessor_config.json"))


def _processor(checkpoint: Checkpoint, family: str) -> Any:
    """Return the processor of transformers that has the tokenizer and the image processor of a checkpoint.

    Its own class may be one of colpali-engine's, or one of transformers that puts other texts around.
    """
    place = {key: value for key, value in checkpoint.place.items() if key != "cache_folder"}
    place["cache_dir"] = checkpoint.place["cache_folder"]
    images = transformers.AutoImageProcessor.from_pretrained(checkpoint.name, **place)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.name, **place)
    if family == "colpali":
        return transformers.ColPaliProcessor(images, tokenizer)
    if family in ("colidefics3", "colmodernvbert"):
        length = checkpoint.read("processor_config.json").get("image_seq_len", 64)
        return transformers.Idefics3Processor(images, tokenizer, image_seq_len=length)
    return transformers.ColQwen2Processor(images, tokenizer)


def _merge_adapter(saved: dict[str, Tensor], checkpoint: Checkpoint, adapter: Mapping[str, Any], family: str) -> None:
    """Add the products of an adapter's matrices to the weights, and put its whole layers in the place of theirs."""
    others = ("use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias")
    unread = [key for key in others if adapter.get(key)]
    if adapter.get("peft_type") != "LORA" or unread:
        raise ModelLoadError(
            checkpoint.name, ValueError(f"its adapter is {adapter.get('peft_type')!r}, with {unread}."), cure=_ENGINE
        )
    rank = float(adapter["r"])
    scale = float(adapter["lora_alpha"]) / (rank**0.5 if adapter.get("use_rslora") else rank)
    tensors = checkpoint.tensors(checkpoint.shapes(files=ADAPTER), files=ADAPTER)
    left: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        stem, is_lora, _ = name.partition(".lora_A.")
        target = _renamed(f"{stem}.weight" if is_lora else name, family)
        if is_lora and target in saved and (second := tensors.get(name.replace(".lora_A.", ".lora_B."))) is not None:
            change = scale * (second.float() @ tensor.float())
            saved[target] = (saved[target].float() + change).to(saved[target].dtype)
        elif is_lora or (target not in saved and ".lora_B." not in name):
            left[name] = tuple(tensor.shape)
        elif ".lora_B." not in name:
            saved[target] = tensor
        elif name.replace(".lora_B.", ".lora_A.") not in tensors:
            left[name] = tuple(tensor.shape)
    refuse_unused(checkpoint.name, left, "which its base model has no place for")
