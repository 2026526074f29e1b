"""Attention and recurrence: named so that the refusal says more than "no rule"."""

from __future__ import annotations

import torch

from .table import Call, Layouts, NotRowLocal, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("mixing")


@TABLE.rule(aten.scaled_dot_product_attention.default)
def attention(call: Call) -> Layouts:
    raise NotRowLocal(f"{call.name}: attention mixes the rows of all tokens")


@TABLE.rule(
    aten.lstm.input,
    aten.lstm.data,
    aten.gru.input,
    aten.gru.data,
    aten.rnn_tanh.input,
    aten.rnn_tanh.data,
    aten.rnn_relu.input,
    aten.rnn_relu.data,
)
def recurrence(call: Call) -> Layouts:
    raise NotRowLocal(
        f"{call.name} carries a state from token to token; write its input projection as a Linear to fold that part"
    )
