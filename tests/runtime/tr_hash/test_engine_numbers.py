"""What the engine computes, forward and backward: golden numbers, and a definition token by token in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foldfx.runtime.tr_hash import TRHashEngine, TRHashEngineConfig, reference_topk_swiglu
from foldfx.runtime.tr_hash.choice import LOWERINGS

from .definition import HIDDEN, LIMITS, SIZES, TRACEABLE, VOCABULARY, assert_near, by_token, engine, inputs, run, strategies
from .golden import Layer, layers


def lowerings(layer: TRHashEngine) -> list[str]:
    """Those that can compute this layer."""
    pairs = layer.config.top_k == 2 and all(layer.config.route_weights)
    return ["auto", TRACEABLE, *(each for each in LOWERINGS if pairs or each != "by_pair")]


@pytest.mark.parametrize("golden", layers(), ids=lambda layer: layer.config["routing_strategy"])
def test_golden_numbers(golden: Layer) -> None:
    """To 1e-12 in float64, ids outside the vocabulary included, by every lowering."""
    layer = TRHashEngine(TRHashEngineConfig(**golden.config, precision="fp32")).double()
    assert layer.routes.sha256 == golden.table_sha256
    layer.load_state_dict(golden.weights, strict=False)
    calls = {"engine": layer} | {each: lambda x, ids, each=each: run(layer, x, ids, each) for each in lowerings(layer)}
    for name, call in calls.items():
        layer.zero_grad()
        hidden = golden.hidden.clone().requires_grad_()
        output = call(hidden, golden.ids)
        output.backward(golden.grad_output)
        found = {"output": output, "hidden": hidden.grad} | {each: weight.grad for each, weight in layer.named_parameters()}
        for each, expected in (golden.gradients | {"output": golden.output}).items():
            assert float((found[each] - expected).abs().max()) <= 1e-12, f"{each} of {name}"


MATRIX = [(experts, top_k, strategy) for experts, top_k in SIZES for strategy in strategies(experts, top_k)]


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(("experts", "top_k", "strategy"), MATRIX)
def test_support_matrix(experts: int, top_k: int, strategy: str, dtype: torch.dtype) -> None:
    """Forward and backward of every lowering against float64."""
    layer = engine(
        dtype, num_experts=experts, top_k=top_k, routing_strategy=strategy, shared_output_scale=0.5, routed_output_scale=2.0
    )
    hidden, ids = inputs(dtype)
    exact = hidden.double().clone().requires_grad_()
    expected, weights = by_token(layer, exact, ids)
    grad = torch.randn(hidden.shape).to(dtype)
    expected.backward(grad.double())
    for lowering in lowerings(layer):
        layer.zero_grad()
        given = hidden.clone().requires_grad_()
        output = run(layer, given, ids, lowering)
        assert output.dtype == dtype
        output.backward(grad)
        assert_near(f"output of {lowering}", output, expected, dtype)
        assert_near(f"grad of hidden by {lowering}", given.grad, exact.grad, dtype)
        for name, weight in layer.named_parameters():
            assert_near(f"grad of {name} by {lowering}", weight.grad, weights[name].grad, dtype)
        with torch.no_grad():
            assert_near(f"output of {lowering} without gradients", run(layer, hidden, ids, lowering), expected, dtype)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("tokens", [15, 16, 100, 256, 257])
def test_few_and_many_tokens(tokens: int, dtype: torch.dtype) -> None:
    """The shared branch with tokens as rows and as columns, at both ends of the choice between them."""
    layer = engine(dtype)
    hidden, ids = inputs(dtype, 1, tokens)
    exact = hidden.double().requires_grad_()
    expected, weights = by_token(layer, exact, ids)
    grad = torch.randn(hidden.shape).to(dtype)
    expected.backward(grad.double())
    output = layer(hidden.requires_grad_(), ids)
    output.backward(grad)
    with torch.no_grad():
        without = layer(hidden, ids)
    for name, found in (("output", output), ("output without gradients", without)):
        assert found.is_contiguous()
        assert_near(name, found, expected, dtype)
    assert_near("grad of hidden", hidden.grad, exact.grad, dtype)
    for name, weight in layer.named_parameters():
        assert_near(f"grad of {name}", weight.grad, weights[name].grad, dtype)


@pytest.mark.parametrize("values", [{"shared_width": 0}, {"route_weights": (1.0, 0.0)}, {"routed_output_scale": 0.0}], ids=str)
def test_parts_that_are_missing(values: dict[str, Any]) -> None:
    layer = engine(torch.float64, **values)
    hidden, ids = inputs(torch.float64)
    expected, weights = by_token(layer, hidden, ids)
    expected.sum().backward()
    for lowering in lowerings(layer):
        if lowering == "by_pair" and not layer.config.routed_output_scale:
            continue
        layer.zero_grad()
        output = run(layer, hidden, ids, lowering)
        output.sum().backward()
        assert_near(lowering, output, expected, torch.float64)
        for name, weight in layer.named_parameters():
            reached = weights[name].grad if weights[name].grad is not None else torch.zeros_like(weights[name])
            assert_near(f"{name} by {lowering}", weight.grad, reached, torch.float64)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_empty_and_single(shape: tuple[int, int], lowering: str) -> None:
    layer = engine()
    hidden, ids = torch.randn(*shape, HIDDEN, requires_grad=True), torch.randint(VOCABULARY, shape)
    output = run(layer, hidden, ids, lowering)
    assert output.shape == hidden.shape
    output.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == hidden.shape
    assert all(weight.grad is not None for weight in layer.parameters())


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_row_does_not_depend_on_the_others(lowering: str) -> None:
    """An overflow stays in its own row, and so do experts that the row did not choose."""
    layer = engine()
    hidden, ids = inputs(torch.float32)
    clean = run(layer, hidden, ids, lowering)
    poisoned = hidden.clone()
    poisoned[0, 1] = float("inf")
    found = run(layer, poisoned, ids, lowering)
    assert not found[0, 1].isfinite().any()
    others = torch.ones(hidden.shape[:2], dtype=torch.bool)
    others[0, 1] = False
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("lowering", [*LOWERINGS, TRACEABLE])
def test_an_overflow_in_an_expert_not_chosen_does_not_reach_the_row(lowering: str) -> None:
    """Its pre-activations overflow float16; output and gradients of the row are finite and right."""
    layer = engine(torch.float16)
    table = torch.tensor([[0], [1]], dtype=torch.uint8).expand(2, VOCABULARY)
    layer.load_route_table(table)
    with torch.no_grad():
        layer.expert_gate[3], layer.expert_up[3] = 6e4, 6e4
    hidden, ids = torch.full((1, 1, HIDDEN), 2.0, dtype=torch.float16, requires_grad=True), torch.zeros(1, 1, dtype=torch.int64)
    exact = hidden.detach().double().requires_grad_()
    expected, weights = by_token(layer, exact, ids)
    expected.sum().backward()
    output = run(layer, hidden, ids, lowering)
    output.sum().backward()
    assert_near("output", output, expected, torch.float16)
    assert_near("grad of hidden", hidden.grad, exact.grad, torch.float16)
    for name, weight in layer.named_parameters():
        assert_near(f"grad of {name}", weight.grad, weights[name].grad, torch.float16)


@pytest.mark.parametrize("lowering", [*LOWERINGS, TRACEABLE])
def test_an_expert_given_twice_counts_with_both_weights(lowering: str) -> None:
    """No RouteTable has that, but a buffer can be written; half of the tokens, beside others that have a pair."""
    layer = engine(torch.float64)
    layer.route_table[1, ::2] = layer.route_table[0, ::2]
    hidden, ids = inputs(torch.float64, 3, 7)
    exact = hidden.clone().requires_grad_()
    expected, weights = by_token(layer, exact, ids, layer.route_table)
    expected.square().sum().backward()
    hidden.requires_grad_()
    output = run(layer, hidden, ids, lowering)
    output.square().sum().backward()
    assert_near("output", output, expected, torch.float64)
    assert_near("grad of hidden", hidden.grad, exact.grad, torch.float64)
    for name, weight in layer.named_parameters():
        assert_near(f"grad of {name}", weight.grad, weights[name].grad, torch.float64)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_runs_repeat_to_the_bit(lowering: str) -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32, 4, 9)
    results = []
    for _ in range(2):
        layer.zero_grad()
        given = hidden.clone().requires_grad_()
        run(layer, given, ids, lowering).sum().backward()
        results.append([given.grad, *(weight.grad for weight in layer.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_only_the_gradients_asked_for() -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    layer.requires_grad_(False)
    given = hidden.clone().requires_grad_()
    layer(given, ids).sum().backward()
    assert given.grad is not None
    assert all(weight.grad is None for weight in layer.parameters())
    layer.expert_up.requires_grad_()
    layer(hidden, ids).sum().backward()
    assert [name for name, weight in layer.named_parameters() if weight.grad is not None] == ["expert_up"]


def test_gradcheck() -> None:
    layer = engine(torch.float64, num_experts=4, top_k=2)
    hidden, ids = inputs(torch.float64, 1, 3)
    for lowering in LOWERINGS:
        assert torch.autograd.gradcheck(lambda x, each=lowering: run(layer, x, ids, each), (hidden.requires_grad_(),))


def test_the_public_reference_is_the_routed_branch() -> None:
    layer = engine(torch.float64, shared_width=0, num_experts=8)
    hidden, ids = inputs(torch.float64)
    flat = hidden.reshape(-1, HIDDEN)
    routes = layer.route_table[:, ids.flatten().clamp(0, VOCABULARY - 1)].long()
    weights = torch.tensor(layer.config.route_weights, dtype=torch.float64)[:, None].expand(routes.shape)
    output = reference_topk_swiglu(flat, routes, layer.expert_gate, layer.expert_up, layer.expert_down, weights)
    assert_near("reference", output, layer(hidden, ids).reshape(-1, HIDDEN), torch.float64)
    twice = reference_topk_swiglu(flat, routes[:1].repeat(2, 1), layer.expert_gate, layer.expert_up, layer.expert_down, weights)
    once = reference_topk_swiglu(
        flat, routes[:1], layer.expert_gate, layer.expert_up, layer.expert_down, torch.ones(1, len(flat), dtype=torch.float64)
    )
    assert_near("a route given twice", twice, once, torch.float64)


def test_the_public_reference_with_other_functions() -> None:
    gate, up, down = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 4, 3)
    x, routes = torch.randn(5, 3), torch.tensor([[0, 1, 1, 0, 1]])
    found = reference_topk_swiglu(
        x, routes, gate, up, down, torch.full((1, 5), 2.0), activation=torch.relu, intermediate_transform=lambda h: h * 3
    )
    for row, expert in enumerate(routes[0].tolist()):
        expected = 2 * (torch.relu(x[row] @ gate[expert]) * (x[row] @ up[expert]) * 3) @ down[expert]
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"flat_x": torch.zeros(5, 4)}, ValueError, "flat_x must be"),
        ({"gate": torch.zeros(2, 3)}, ValueError, "flat_x must be"),
        ({"up": torch.zeros(2, 3, 5)}, ValueError, "up must be"),
        ({"down": torch.zeros(2, 3, 4)}, ValueError, "down must be"),
        ({"routes": torch.zeros(5, dtype=torch.int64)}, ValueError, "route_weights must be"),
        ({"routes": torch.zeros(1, 4, dtype=torch.int64), "route_weights": torch.zeros(1, 4)}, ValueError, "routes must be"),
        ({"routes": torch.full((1, 5), 2)}, IndexError, "routes reach from 2 to 2, with experts 0..1"),
    ],
)
def test_the_public_reference_refuses(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {
        "flat_x": torch.zeros(5, 3),
        "routes": torch.zeros(1, 5, dtype=torch.int64),
        "gate": torch.zeros(2, 3, 4),
        "up": torch.zeros(2, 3, 4),
        "down": torch.zeros(2, 4, 3),
        "route_weights": torch.zeros(1, 5),
    }
    with pytest.raises(error, match=message):
        reference_topk_swiglu(**given | changes)
