"""One step of a GPT-2 decoder (Radford et al., 2019; pre-norm, tanh GELU) with a cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .random_weights import initialize, seeded


@dataclass(frozen=True)
class Gpt2Shape:
    """Sizes of the decoder; the defaults are those of GPT-2 small."""

    layers: int = 12
    channels: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024


class Gpt2Layer(nn.Module):
    """Attention to the cached tokens and the new one, then a two-layer network, each normalized before."""

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.channels)
        self.attention = nn.Linear(shape.channels, 3 * shape.channels)
        self.output = nn.Linear(shape.channels, shape.channels)
        self.norm = nn.LayerNorm(shape.channels)
        self.expand = nn.Linear(shape.channels, 4 * shape.channels)
        self.contract = nn.Linear(4 * shape.channels, shape.channels)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, channels = x.shape
        split = (batch, tokens, self.heads, channels // self.heads)
        parts = self.attention(self.attention_norm(x)).chunk(3, dim=-1)
        query, key, value = (part.view(split).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, torch.cat([keys, key], 2), torch.cat([values, value], 2))
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, tokens, channels))
        x = x + self.contract(functional.gelu(self.expand(self.norm(x)), approximate="tanh"))
        return x, key, value


class Gpt2Step(nn.Module):
    """The next token's logits float32 [N, vocabulary] of a token int64 [N, 1], and its keys and values of every layer
    [layers, N, heads, 1, width], to be appended to the caches [layers, N, heads, T, width] that it attends to."""

    def __init__(self, shape: Gpt2Shape | None = None) -> None:
        super().__init__()
        shape = shape or Gpt2Shape()
        self.words = nn.Embedding(shape.vocabulary, shape.channels)
        self.positions = nn.Embedding(shape.positions, shape.channels)
        self.layers = nn.ModuleList(Gpt2Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.channels)

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.words(token) + self.positions.weight[keys.shape[3]]
        new = []
        for layer, layer_keys, layer_values in zip(self.layers, keys, values, strict=True):
            x, key, value = layer(x, layer_keys, layer_values)
            new.append((key, value))
        logits = functional.linear(self.norm(x)[:, -1], self.words.weight)
        return logits, torch.stack([k for k, _ in new]), torch.stack([v for _, v in new])


def build(seed: int = 0, shape: Gpt2Shape | None = None) -> nn.Module:
    """The decoder in inference mode with seeded random weights: for its speed, not for its answers."""

    def make() -> nn.Module:
        model = Gpt2Step(shape)
        initialize(model)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        return model.eval()

    return seeded(make, seed)
