"""Tiny models of random weights in the layouts of ColPali, ColQwen2, ColQwen2.5 and ColModernVBERT, made offline."""

import json

import torch
import transformers
from PIL import Image
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_TEXTS = ["Describe the image. Question: Query: user User: Assistant: A table of profits, a red chart, a blue cat."] * 3
_QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
_MODERN = ["<|padding|>", "[UNK]", "<|begin_of_text|>", "<global-img>", "<fake_token_around_image>", "<image>"]
# transformers' own processor of ColModernVBERT makes no tokens for a picture on its own: sentence-transformers reads
# the same tokens from a chat template.
_TEMPLATE = """{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'image' %}\
<|begin_of_text|>User:<image>Describe the image.<end_of_utterance>
Assistant:{% else %}{{ part['text'] }}{% for _ in range(10) %}<end_of_utterance>{% endfor %}{% endif %}{% endfor %}\
{% endfor %}"""
_MODERN += ["<end_of_utterance>", *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))]


def _byte_pairs(special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=450, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return tokenizer


def _vocabulary(special, space="Ġ", newline="Ċ"):
    learned = json.loads(_byte_pairs(special).to_str().replace("Ġ", space).replace("Ċ", newline))["model"]
    return {"vocab": learned["vocab"], "merges": [tuple(pair) for pair in learned["merges"]]}


def _colpali():
    words = _vocabulary(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<image>"], "▁", "\\n")
    images = transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56}, image_seq_length=16)
    processor = transformers.ColPaliProcessor(images, transformers.GemmaTokenizer(**words))
    vlm = transformers.PaliGemmaConfig(
        vision_config={**_SIZES, "model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14},
        text_config={
            **_SIZES,
            "model_type": "gemma",
            "num_key_value_heads": 1,
            "head_dim": 16,
            "vocab_size": len(processor.tokenizer),
            "pad_token_id": 0,
        },
        projection_dim=32,
        hidden_size=32,
        vocab_size=len(processor.tokenizer),
        image_token_id=processor.image_token_id,
    )
    return transformers.ColPaliForRetrieval(transformers.ColPaliConfig(vlm_config=vlm, embedding_dim=16)), processor


def _colqwen(config_class, vision):
    """ColQwen2 and ColQwen2.5: one class, around another encoder. The number of patches follows the picture's sides."""
    tokenizer = transformers.Qwen2Tokenizer(**_vocabulary(_QWEN), extra_special_tokens=_QWEN[1:])
    images = transformers.Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=24 * 28 * 28)
    processor = transformers.ColQwen2Processor(images, tokenizer)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    text = {**_SIZES, "num_key_value_heads": 1, "vocab_size": len(tokenizer), "rope_parameters": rope}
    vlm = config_class(
        vision_config={"depth": 2, "num_heads": 2, **vision},
        text_config=text,
        image_token_id=processor.image_token_id,
        vision_start_token_id=3,
        vision_end_token_id=4,
    )
    return transformers.ColQwen2ForRetrieval(transformers.ColQwen2Config(vlm_config=vlm, embedding_dim=16)), processor


def _colmodernvbert():
    backend = _byte_pairs(_MODERN)
    backend.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|padding|>")
    images = transformers.Idefics3ImageProcessorPil(size={"longest_edge": 128}, max_image_size={"longest_edge": 64})
    tokenizer.add_special_tokens({"additional_special_tokens": [token for token in _MODERN if token[0] == "<"]})
    processor = transformers.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=_TEMPLATE)
    vlm = transformers.ModernVBertConfig(
        vision_config={**_SIZES, "model_type": "siglip_vision_model", "image_size": 64, "patch_size": 16},
        text_config={**_SIZES, "model_type": "modernbert", "vocab_size": len(tokenizer), "pad_token_id": 0},
        image_token_id=processor.image_token_id,
        pixel_shuffle_factor=2,
    )
    config = transformers.ColModernVBertConfig(vlm_config=vlm, embedding_dim=16)
    return transformers.ColModernVBertForRetrieval(config), processor


IMAGE_MODELS = {
    "colpali": _colpali,
    "colqwen2": lambda: _colqwen(transformers.Qwen2VLConfig, {"embed_dim": 32, "hidden_size": 32}),
    "colqwen2.5": lambda: _colqwen(
        transformers.Qwen2_5_VLConfig,
        {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 64, "fullatt_block_indexes": [1]},
    ),
    "colmodernvbert": _colmodernvbert,
}


def save_image_model(family, folder, *, patches_only=False):
    """Write a model of a family, as its authors do where sentence-transformers reads that; return the folder's name."""
    torch.manual_seed(0)
    model, processor = IMAGE_MODELS[family]()
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    has_template = processor.chat_template is not None
    if has_template or patches_only:
        how = {"method": "forward", "method_output_name": "embeddings"}
        reads = {"text": how, "image": how, **({"message": {**how, "format": "structured"}} if has_template else {})}
        encoder = Transformer(
            str(folder), transformer_task="retrieval", modality_config=reads, module_output_name="token_embeddings"
        )
        patch = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
        mask = MultiVectorMask(keep_only_token_ids=[patch] if patches_only else None)
        MultiVectorEncoder(modules=[encoder, mask], device="cpu").save(str(folder), create_model_card=False)
    return str(folder)


def pictures():
    noise = torch.randint(0, 256, (200, 140, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return [Image.fromarray(each.numpy()) for each in (noise.transpose(0, 1).contiguous(), noise)]
