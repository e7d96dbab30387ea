"""Small relatives of well-known networks for text, sound, tables, graphs and points, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class TemporalConvolution(nn.Module):
    """TCN: causal dilated convolutions, padded at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(4, 4, 3, dilation=2**i) for i in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.convs):
            x = x + F.relu(layer(F.pad(x, (2 * 2**i, 0))))
        return x


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(16, 4), nn.Conv1d(4, 16, 1)
        self.gates, self.skips = (nn.ModuleList(nn.Conv1d(4, 8, k, dilation=d) for d in (1, 2)) for k in (2, 1))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        x = self.embed(samples).transpose(1, 2)
        total = torch.zeros_like(x)
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            value, scale = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            residual, own = skip(torch.tanh(value) * torch.sigmoid(scale)).chunk(2, 1)
            x, total = x + residual, total + own
        return self.out(F.relu(total))


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.expand, self.depthwise = nn.Conv1d(8, 16, 1), nn.Conv1d(8, 8, 5, padding=2, groups=8)
        self.norm, self.project = nn.BatchNorm1d(8), nn.Conv1d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.down(F.silu(self.up(self.norms[0](x))))
        y = self.norms[1](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.expand(self.norms[2](x).transpose(1, 2)), dim=1)
        return x + self.project(F.silu(self.norm(self.depthwise(y)))).transpose(1, 2)


class GatedMlp(nn.Module):
    """gMLP with a causal mask on the spatial weights, cut to the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 16), nn.Linear(8, 4), nn.LayerNorm(8)
        self.spatial, self.bias = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = x.shape[1]
        u, v = F.gelu(self.up(x)).chunk(2, -1)
        weight = self.spatial.tril()[:steps, :steps]
        v = torch.einsum("bnd,mn->bmd", self.norm(v), weight) + self.bias[:steps, None]
        return x + self.down(u * v)


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 1))
        self.head = nn.Conv1d(32, 4, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        y = self.local(points.transpose(1, 2))
        whole = torch.max(y, 2, keepdim=True)[0].repeat(1, 1, y.shape[2])
        return F.log_softmax(self.head(torch.cat([y, whole], 1)).transpose(1, 2), -1)


class GraphConvolution(nn.Module):
    """GCN on a dense adjacency matrix, normalized by the degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        linked = adjacency + torch.eye(adjacency.shape[-1])
        degree = linked.sum(-1).clamp(min=1).pow(-0.5)
        linked = degree[..., None] * linked * degree[..., None, :]
        return linked @ self.second(F.relu(linked @ self.first(nodes)))


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Sequential(nn.Linear(3, 8), nn.ELU()), nn.Linear(8, 2)

    def forward(self, items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = self.inner(items) * mask[..., None]
        return self.outer(kept.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class ConvolutionalRecurrent(nn.Module):
    """CRNN for lines of text: convolutions, then a bidirectional LSTM along the width."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)),
                                   nn.Conv2d(4, 4, 3, padding=1))
        self.lstm, self.head = nn.LSTM(16, 6, bidirectional=True, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convs(x).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.lstm(y)[0]).log_softmax(-1)


class Transformer(nn.Module):
    """Encoder and decoder of PyTorch's own layers, with a causal mask of the target's length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.register_buffer("positions", torch.randn(1, 32, 8))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.full((target.shape[1], target.shape[1]), float("-inf")), diagonal=1)
        return self.net(self.embed(source) + self.positions[:, :source.shape[1]],
                        self.embed(target) + self.positions[:, :target.shape[1]], tgt_mask=mask,
                        tgt_is_causal=True)


class LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        scale = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(2)) + 1e-6)
        y = torch.einsum("bhnd,bhde,bhn->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v), scale)
        return y.transpose(1, 2).flatten(2)


class Perceiver(nn.Module):
    """A few learnt latents that attend to an input of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.attention = nn.Parameter(torch.randn(3, 8)), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        return latents + self.attention(latents, x, x, need_weights=False)[0]


class MixtureOfExperts(nn.Module):
    """Every expert computes; a gate with two of four weights them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 16) * 0.2), nn.Parameter(torch.randn(4, 16, 8) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top, chosen = self.gate(x).topk(2, dim=-1)
        weights = torch.zeros(*x.shape[:-1], 4).scatter(-1, chosen, top.softmax(-1))
        hidden = F.silu(torch.einsum("bsd,edf->bsef", x, self.up))
        return torch.einsum("bsef,efd,bse->bsd", hidden, self.down, weights)


class StateSpace(nn.Module):
    """A diagonal linear recurrence in closed form: products of decays as differences of cumulated logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.inputs, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logs = -F.softplus(self.rate(x)).cumsum(1)
        steps = torch.arange(x.shape[1])
        later = (steps[:, None] < steps)[None, :, :, None]
        decay = (logs[:, :, None] - logs[:, None]).masked_fill(later, float("-inf"))
        return self.out((decay.exp() * self.inputs(x)[:, None]).sum(2))


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 3) for n in (5, 7))
        self.wide, self.deep = nn.Linear(2, 1), nn.Sequential(nn.Linear(8, 8), nn.PReLU(8), nn.Linear(8, 1))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        embedded = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return torch.sigmoid(self.wide(numbers) + self.deep(torch.cat([numbers, *embedded], 1))).squeeze(1)


class Dlrm(nn.Module):
    """Pairwise products of embeddings, the upper triangle of them kept."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.top = nn.Linear(3, 4), nn.Linear(4 + 3, 1)
        self.bags = nn.ModuleList(nn.Embedding(6, 4) for _ in range(2))
        rows, columns = torch.triu_indices(3, 3, 1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, numbers: torch.Tensor, bags: list[torch.Tensor]) -> torch.Tensor:
        dense = F.relu(self.bottom(numbers))
        rows = torch.stack([dense, *(table(ids).sum(1) for table, ids in zip(self.bags, bags, strict=True))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat([dense, products], 1))


class TabTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 1,
                                             enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(3), nn.Linear(3 * 8 + 3, 2)
        self.register_buffer("offsets", torch.tensor([0, 4, 8]))

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        y = self.encoder(self.embed(categories + self.offsets)).flatten(1)
        return self.head(torch.cat([y, self.norm(numbers)], 1))


class RecurrentStep(nn.Module):
    """One step of a sequence-to-sequence decoder with additive attention over the encoder's states."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(10, 4), nn.GRUCell(4 + 6, 6), nn.Linear(12, 10)
        self.query, self.key, self.score = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, token: torch.Tensor, state: torch.Tensor, memory: torch.Tensor,
                lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.score(torch.tanh(self.query(state)[:, None] + self.key(memory))).squeeze(-1)
        hidden = torch.arange(memory.shape[1])[None] >= lengths[:, None]
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        context = (weights[:, None] @ memory).squeeze(1)
        state = self.cell(torch.cat([self.embed(token), context], 1), state)
        return {"logits": self.out(torch.cat([state, context], 1)), "state": state, "weights": weights}


class GptByHand(nn.Module):
    """nanoGPT: one projection for q, k, v, a triangular buffer cut to the sequence, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(16, 8)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("visible", torch.ones(16, 16).tril().view(1, 1, 16, 16))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, steps = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(steps))
        q, k, v = (t.view(batch, steps, 2, 4).transpose(1, 2) for t in self.qkv(self.norm(x)).split(8, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        scores = scores.masked_fill(self.visible[:, :, :steps, :steps] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.head(x + self.out(y.transpose(1, 2).contiguous().view(batch, steps, 8)))


class CachedAttention(nn.Module):
    """A decoder's step: new keys and values are appended to those of the steps before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return {"y": self.out(y.transpose(1, 2).flatten(2)), "k": k, "v": v}


class Rotary(nn.Module):
    """Rotary positions from an arange of the sequence's length, grouped key and value heads, RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.kv = nn.RMSNorm(8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.register_buffer("frequencies", 1.0 / 100 ** (torch.arange(0, 4, 2) / 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        angles = torch.outer(torch.arange(x.shape[1]).float(), self.frequencies)
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        q, (k, v) = self.q(y).unflatten(-1, (2, 4)).transpose(1, 2), (
            t.unflatten(-1, (1, 4)).transpose(1, 2) for t in self.kv(y).chunk(2, -1))
        q, k = (t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + y.transpose(1, 2).flatten(2)


class TextConvolution(nn.Module):
    """Kim's CNN for sentences: convolutions of several widths, the greatest value over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6, padding_idx=0)
        self.convs, self.head = nn.ModuleList(nn.Conv1d(6, 4, k) for k in (2, 3, 4)), nn.Linear(12, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).transpose(1, 2)
        return self.head(torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], 1))


class RelativeBias(nn.Module):
    """T5's attention: a learnt bias by buckets of distance, computed for any length."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(8, 24), nn.Embedding(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        distance = (places[None] - places[:, None]).clamp(-4, 3) + 4
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) + self.bias(distance).permute(2, 0, 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class SlidingWindows(nn.Module):
    """Speech frames: windows of the samples, weighted, and their energies."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(8))
        self.filters = nn.Linear(8, 4, bias=False)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        frames = samples.unfold(-1, 8, 4) * self.window
        return torch.log(self.filters(frames).square() + 1e-3)
