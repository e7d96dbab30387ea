"""A BERT encoder (Devlin et al., 2018; post-norm, exact GELU) of MiniLM's shape: 6 layers of 384 channels, 12 heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, matmul, nn
from torch.nn import functional

from .random_weights import initialize, seeded

MASKED = -1e4
"""What is added to the scores of masked keys: exp(MASKED) is 0 in float32."""


@dataclass(frozen=True)
class BertShape:
    """Sizes of the encoder; the defaults are those of MiniLM-L6-H384 (Wang et al., 2020)."""

    layers: int = 6
    channels: int = 384
    heads: int = 12
    inner: int = 1536
    vocabulary: int = 30522
    positions: int = 512
    token_types: int = 2
    epsilon: float = 1e-12


class SelfAttention(nn.Module):
    """Multi-head attention over x float32 [N, T, C] with an additive mask that broadcasts to [N, heads, T, T]."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.channels, shape.channels)
        self.key = nn.Linear(shape.channels, shape.channels)
        self.value = nn.Linear(shape.channels, shape.channels)
        self.output = nn.Linear(shape.channels, shape.channels)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, tokens, channels = x.shape
        split = (batch, tokens, self.heads, channels // self.heads)
        query, key, value = (layer(x).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, channels))


class PlainSelfAttention(SelfAttention):
    """The same, written as two matrix products around a softmax: quantizers annotate products, not attention."""

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, tokens, channels = x.shape
        width = channels // self.heads
        split = (batch, tokens, self.heads, width)
        query, key, value = (layer(x).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = matmul(query, key.transpose(2, 3)) / width**0.5 + bias
        mixed = matmul(functional.softmax(scores, dim=-1), value)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, channels))


class BertLayer(nn.Module):
    """Attention and a two-layer network, each with a residual and a layer normalization after it."""

    def __init__(self, shape: BertShape, attention: type[SelfAttention]) -> None:
        super().__init__()
        self.attention = attention(shape)
        self.attention_norm = nn.LayerNorm(shape.channels, eps=shape.epsilon)
        self.expand = nn.Linear(shape.channels, shape.inner)
        self.contract = nn.Linear(shape.inner, shape.channels)
        self.norm = nn.LayerNorm(shape.channels, eps=shape.epsilon)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, bias))
        return self.norm(x + self.contract(functional.gelu(self.expand(x))))


class BertEncoder(nn.Module):
    """Token ids int64 [N, T] and a mask [N, T] (1 = a token, 0 = padding) to hidden states float32 [N, T, C].

    attention : the class of the attention layers.
    """

    def __init__(self, shape: BertShape | None = None, attention: type[SelfAttention] = SelfAttention) -> None:
        super().__init__()
        shape = shape or BertShape()
        self.tokens = nn.Embedding(shape.vocabulary, shape.channels)
        self.positions = nn.Embedding(shape.positions, shape.channels)
        self.token_types = nn.Embedding(shape.token_types, shape.channels)
        self.norm = nn.LayerNorm(shape.channels, eps=shape.epsilon)
        self.layers = nn.ModuleList(BertLayer(shape, attention) for _ in range(shape.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]] + self.token_types.weight[0]
        x = self.norm(x)
        bias = ((1.0 - attention_mask.to(x.dtype)) * MASKED)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        return x


def mean_pool(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean of hidden states float32 [N, T, C] over the tokens that the mask [N, T] keeps: [N, C]."""
    weights = attention_mask.to(hidden.dtype)[:, :, None]
    return (hidden * weights).sum(1) / weights.sum(1)


def build(seed: int = 0, shape: BertShape | None = None, attention: type[SelfAttention] = SelfAttention) -> nn.Module:
    """The encoder in inference mode with seeded random weights: for its speed, not for its answers."""

    def make() -> nn.Module:
        model = BertEncoder(shape, attention)
        initialize(model)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        return model.eval()

    return seeded(make, seed)
