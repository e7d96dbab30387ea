"""Models of ``transformers``, made from small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

TOKENS = 64
_TEXT: dict[str, Any] = {"vocab_size": TOKENS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                         "intermediate_size": 32, "max_position_embeddings": 32}
_VISION: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
                           "image_size": 32, "patch_size": 8}
_GENERATOR: dict[str, Any] = {**_TEXT, "use_cache": False}
_GROUPED: dict[str, Any] = {**_GENERATOR, "num_key_value_heads": 1}
_BOTH_SIDES: dict[str, Any] = {
    "vocab_size": TOKENS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "use_cache": False}
_WHISPER: dict[str, Any] = {
    **{k: v for k, v in _BOTH_SIDES.items() if k != "max_position_embeddings"}, "max_source_positions": 16,
    "max_target_positions": 32, "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1}


@dataclass(frozen=True)
class Case:
    """A model, its keyword arguments for some extents, which dimensions those name, and the extents."""

    make: Callable[[], nn.Module]
    inputs: Callable[..., Any]
    dynamic: Any
    sizes: Sequence[Mapping[str, int]]


BATCHES = ({"batch": 2}, {"batch": 3})
SEQUENCES = ({"batch": 2, "seq": 6}, {"batch": 3, "seq": 9})
IDS = {"input_ids": {0: "batch", 1: "seq"}}
MASKED = {**IDS, "attention_mask": {0: "batch", 1: "seq"}}
PIXELS = {"pixel_values": {0: "batch"}}


def ids(batch: int, seq: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(2, TOKENS, (batch, seq))}


def masked(batch: int, seq: int) -> dict[str, torch.Tensor]:
    """Token ids, the first row with two padded ones."""
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[0, -2:] = 0
    return {**ids(batch, seq), "attention_mask": mask}


def pixels(batch: int, height: int = 32, width: int = 32) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, height, width)}


def text(make: Callable[[], nn.Module]) -> Case:
    return Case(make, masked, MASKED, SEQUENCES)


def vision(make: Callable[[], nn.Module]) -> Case:
    return Case(make, pixels, PIXELS, BATCHES)


def any_image(make: Callable[[], nn.Module]) -> Case:
    return Case(make, pixels, {"pixel_values": {0: "batch", 2: "height", 3: "width"}},
                ({"batch": 2, "height": 32, "width": 48}, {"batch": 1, "height": 64, "width": 32}))


def both_sides(make: Callable[[], nn.Module]) -> Case:
    """An encoder's and a decoder's tokens."""
    return Case(make, lambda batch, seq: {**masked(batch, seq),
                                          "decoder_input_ids": torch.randint(1, TOKENS, (batch, 4))},
                {**MASKED, "decoder_input_ids": {0: "batch"}}, SEQUENCES)


class WhisperStep(nn.Module):
    """One step of Whisper's decoder: the caches of its layers go in and come out as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = hf.WhisperModel(hf.WhisperConfig(**_WHISPER | {"use_cache": True})).decoder

    def forward(self, token: torch.Tensor, position: torch.Tensor, encoded: torch.Tensor,
                past: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
        cache = hf.EncoderDecoderCache(hf.DynamicCache(), hf.DynamicCache())
        for layer, (key, value, cross_key, cross_value) in enumerate(past):
            cache.self_attention_cache.update(key, value, layer)
            cache.cross_attention_cache.update(cross_key, cross_value, layer)
            cache.is_updated[layer] = True
        out = self.decoder(input_ids=token, position_ids=position, encoder_hidden_states=encoded,
                           past_key_values=cache, use_cache=True)
        return out.last_hidden_state, [(c.keys, c.values) for c in out.past_key_values.self_attention_cache.layers]


class GptStep(nn.Module):
    """GPT-2 on the next tokens, with the keys and values of those before."""

    def __init__(self) -> None:
        super().__init__()
        self.model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=TOKENS, n_embd=16, n_layer=1, n_head=2,
                                                      n_positions=32))

    def forward(self, input_ids: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
        out = self.model(input_ids=input_ids, past_key_values=hf.DynamicCache(past), use_cache=True)
        return {"logits": out.logits, "past": [(c.keys, c.values) for c in out.past_key_values.layers]}


def _heads(batch: int, steps: int) -> torch.Tensor:
    return torch.randn(batch, 2, steps, 8)


CASES: dict[str, Case] = {
    # text encoders
    "bert": text(lambda: hf.BertModel(hf.BertConfig(**_TEXT))),
    "distilbert": text(lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(
        vocab_size=TOKENS, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=32))),
    "albert": text(lambda: hf.AlbertModel(hf.AlbertConfig(**_TEXT, embedding_size=8))),
    "roberta": text(lambda: hf.RobertaModel(hf.RobertaConfig(**_TEXT, pad_token_id=1))),
    "electra": text(lambda: hf.ElectraModel(hf.ElectraConfig(**_TEXT, embedding_size=8))),
    "mpnet": text(lambda: hf.MPNetModel(hf.MPNetConfig(**_TEXT))),
    "squeezebert": text(lambda: hf.SqueezeBertModel(hf.SqueezeBertConfig(**_TEXT, embedding_size=16))),
    "mobilebert": text(lambda: hf.MobileBertModel(hf.MobileBertConfig(**_TEXT, intra_bottleneck_size=16,
                                                                      embedding_size=16))),
    "deberta_v2": text(lambda: hf.DebertaV2Model(hf.DebertaV2Config(
        **_TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"]))),
    "layoutlm": text(lambda: hf.LayoutLMModel(hf.LayoutLMConfig(**_TEXT))),
    "funnel": Case(lambda: hf.FunnelBaseModel(hf.FunnelConfig(
        vocab_size=TOKENS, block_sizes=[1, 1], d_model=16, n_head=2, d_head=8, d_inner=32, max_position_embeddings=32,
        num_decoder_layers=1)), lambda batch: masked(batch, 8), {k: {0: "batch"} for k in MASKED}, BATCHES),
    "xlnet": Case(lambda: hf.XLNetModel(hf.XLNetConfig(vocab_size=TOKENS, d_model=16, n_layer=1, n_head=2, d_inner=32)),
                  ids, IDS, SEQUENCES),
    "t5_encoder": text(lambda: hf.T5EncoderModel(hf.T5Config(
        vocab_size=TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))),
    # text generators
    "gpt2": text(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=TOKENS, n_embd=16, n_layer=1, n_head=2, n_positions=32, use_cache=False))),
    "gpt2_cache": Case(GptStep, lambda batch, seq, past: (
        torch.randint(0, TOKENS, (batch, seq)), [(_heads(batch, past), _heads(batch, past))]),
        ({0: "batch", 1: "seq"}, [({0: "batch", 2: "past"}, {0: "batch", 2: "past"})]),
        ({"batch": 2, "seq": 3, "past": 5}, {"batch": 3, "seq": 2, "past": 7})),
    "llama": text(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_GROUPED))),
    "mistral": text(lambda: hf.MistralForCausalLM(hf.MistralConfig(**_GROUPED, sliding_window=4))),
    "qwen2": text(lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_GROUPED))),
    "gemma": text(lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**_GROUPED, head_dim=8))),
    "phi": text(lambda: hf.PhiForCausalLM(hf.PhiConfig(**_GENERATOR))),
    "gpt_neox": text(lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_GENERATOR))),
    "gpt_j": text(lambda: hf.GPTJForCausalLM(hf.GPTJConfig(
        vocab_size=TOKENS, n_embd=16, n_layer=1, n_head=2, n_positions=32, rotary_dim=4, use_cache=False))),
    "falcon": text(lambda: hf.FalconForCausalLM(hf.FalconConfig(
        vocab_size=TOKENS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, use_cache=False))),
    "bloom": text(lambda: hf.BloomForCausalLM(hf.BloomConfig(
        vocab_size=TOKENS, hidden_size=16, n_layer=1, n_head=2, use_cache=False))),
    "opt": text(lambda: hf.OPTForCausalLM(hf.OPTConfig(
        vocab_size=TOKENS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32,
        max_position_embeddings=32, word_embed_proj_dim=16, use_cache=False))),
    "mamba": Case(lambda: hf.MambaForCausalLM(hf.MambaConfig(
        vocab_size=TOKENS, hidden_size=8, num_hidden_layers=1, state_size=4, use_cache=False)),
        lambda batch: ids(batch, 5), {"input_ids": {0: "batch"}}, BATCHES),
    # encoder and decoder
    "bart": both_sides(lambda: hf.BartModel(hf.BartConfig(**_BOTH_SIDES))),
    "marian": both_sides(lambda: hf.MarianModel(hf.MarianConfig(**_BOTH_SIDES, pad_token_id=0,
                                                                decoder_start_token_id=1))),
    "t5": both_sides(lambda: hf.T5Model(hf.T5Config(
        vocab_size=TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, use_cache=False))),
    # sound
    "whisper_encoder": Case(lambda: hf.WhisperModel(hf.WhisperConfig(**_WHISPER)).encoder,
                            lambda batch: {"input_features": torch.randn(batch, 8, 32)},
                            {"input_features": {0: "batch"}}, BATCHES),
    "whisper_step": Case(WhisperStep, lambda batch, past: (
        torch.randint(3, TOKENS, (batch, 1)), torch.full((batch, 1), past), torch.randn(batch, 16, 16),
        [(_heads(batch, past), _heads(batch, past), _heads(batch, 16), _heads(batch, 16))]),
        (*[{0: "batch"}] * 3, [(*[{0: "batch", 2: "past"}] * 2, *[{0: "batch"}] * 2)]),
        ({"batch": 2, "past": 5}, {"batch": 3, "past": 7})),
    "wav2vec2": Case(lambda: hf.Wav2Vec2Model(hf.Wav2Vec2Config(
        vocab_size=TOKENS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        conv_dim=[8, 8], conv_stride=[4, 2], conv_kernel=[8, 3], num_feat_extract_layers=2, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2)), lambda batch, samples: {"input_values": torch.randn(batch, samples)},
        {"input_values": {0: "batch", 1: "samples"}}, ({"batch": 2, "samples": 200}, {"batch": 3, "samples": 261})),
    # images
    "vit": vision(lambda: hf.ViTForImageClassification(hf.ViTConfig(**_VISION))),
    "deit": vision(lambda: hf.DeiTModel(hf.DeiTConfig(**_VISION))),
    "dinov2": vision(lambda: hf.Dinov2Model(hf.Dinov2Config(
        **{k: v for k, v in _VISION.items() if k != "intermediate_size"}))),
    "beit": vision(lambda: hf.BeitModel(hf.BeitConfig(**_VISION, use_relative_position_bias=True))),
    "swin": vision(lambda: hf.SwinModel(hf.SwinConfig(
        embed_dim=8, depths=[1, 2], num_heads=[2, 2], window_size=4, image_size=32, patch_size=4))),
    "convnext": any_image(lambda: hf.ConvNextModel(hf.ConvNextConfig(
        num_stages=2, hidden_sizes=[8, 16], depths=[1, 1]))),
    "resnet": any_image(lambda: hf.ResNetModel(hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))),
    "regnet": vision(lambda: hf.RegNetModel(hf.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4))),
    "mobilevit": Case(lambda: hf.MobileViTModel(hf.MobileViTConfig(
        hidden_sizes=[8, 8, 8], neck_hidden_sizes=[4, 4, 8, 8, 8, 8, 16], num_attention_heads=2, image_size=64)),
        lambda batch: pixels(batch, 64, 64), PIXELS, BATCHES),
    "segformer": vision(lambda: hf.SegformerForSemanticSegmentation(hf.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], num_attention_heads=[1, 2],
        decoder_hidden_size=8, patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2]))),
    "clip": Case(lambda: hf.CLIPModel(hf.CLIPConfig(
        text_config={**_TEXT, "eos_token_id": 1}, vision_config=_VISION, projection_dim=8)),
        lambda batch, seq: {**masked(batch, seq), **pixels(batch)}, {**MASKED, **PIXELS}, SEQUENCES),
}
