"""The decoder's step against the decoder of transformers."""

from __future__ import annotations

import torch
import transformers

from narrowcast.models import gpt2


def test_steps_give_the_logits_of_the_whole_sequence() -> None:
    shape = gpt2.Gpt2Shape(layers=2, channels=32, heads=4, vocabulary=50, positions=16)
    model = gpt2.build(3, shape)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=50, n_positions=16)).eval()
    theirs.transformer.wte.weight.data.copy_(model.words.weight)
    theirs.transformer.wpe.weight.data.copy_(model.positions.weight)
    pairs = [(theirs.transformer.ln_f, model.norm)]
    for block, layer in zip(theirs.transformer.h, model.layers, strict=True):
        pairs += [(block.ln_1, layer.attention_norm), (block.ln_2, layer.norm)]
        for conv, linear in ((block.attn.c_attn, layer.attention), (block.attn.c_proj, layer.output),
                             (block.mlp.c_fc, layer.expand), (block.mlp.c_proj, layer.contract)):
            conv.weight.data.copy_(linear.weight.T)
            conv.bias.data.copy_(linear.bias)
    for norm, own in pairs:
        norm.load_state_dict(own.state_dict())
    tokens = torch.randint(0, 50, (2, 5), generator=torch.Generator().manual_seed(0))
    keys = values = torch.zeros(2, 2, 4, 0, 8)
    with torch.inference_mode():
        expected = theirs(tokens).logits
        for t in range(5):
            logits, key, value = model(tokens[:, t:t + 1], keys, values)
            torch.testing.assert_close(logits, expected[:, t], rtol=1e-4, atol=1e-5)
            keys, values = torch.cat([keys, key], 3), torch.cat([values, value], 3)
