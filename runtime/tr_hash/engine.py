"""The TR-Hash layer as a module: parameters, route table, state dict, capacity, and the way to the operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._torch import is_traced
from . import summary
from .backends import BackendDecision, Circumstances, decide, parameter_dtype
from .capacity import Capacity, checked_capacity, reduced_routes
from .choice import AUTO, choose
from .config import Backend, TRHashEngineConfig
from .cuda_graph import is_capturing
from .graphs import GraphPool
from .op import TR_HASH_MLP
from .route_table import RouteTable, route_table_of
from .routing import require_in_range, require_integer_ids
from .shared import by_modules, is_its_weight
from .stored import DERIVED, ROUTE_TABLE, checked_table, derived_entries, stored_table

ACTIVE_TABLE = "active_route_table"


class _LastCall:
    """A note about the last call. Without `__dict__`, so that capture does not take it for state that a graph would lose."""

    __slots__ = ("decision", "rests_on")

    def __init__(self) -> None:
        self.decision: BackendDecision | None = None
        self.rests_on: tuple[Any, ...] = ()


class TRHashEngine(nn.Module):
    """y = shared_scale · S(x) + routed_scale · Σ_j a_j · E[R[j, t]](x), for hidden x and token id t.

    S(x) = (silu(x Gᵀ) · (x Uᵀ)) Dᵀ passes every token; E_e(x) = (silu(x G_e) · (x U_e)) D_e passes the tokens that the
    fixed table R sends to expert e. There is no router, no capacity limit and no auxiliary loss.

    State dict: `expert_gate`, `expert_up` [E, H, W], `expert_down` [E, W, H], `shared_gate.weight`, `shared_up.weight`
    [S, H], `shared_down.weight` [H, S], `route_table` (uint8 [K, V]; any integer dtype is read), and `fused_route_codes`,
    `fused_expert_pairs`, which are derived from the table when written and compared with it when read. Route weights are
    part of the configuration; keep it with `config.to_dict()`.

    The operation reads the weights of the shared modules. Where one of them is more than its weight, by an adapter, a
    hook or a bias, the shared branch is computed by calling them, and the operation computes the routed branch alone.

    Args:
        config: the layer. `precision` is the dtype parameters are created in.
        routes: a table to use instead of the one `config` describes, such as one from a checkpoint.
        device: of parameters and table; None takes torch's default. On `meta` the table is kept aside, and is in place
            once the module is materialised or weights are assigned to it.

    Raises:
        NotImplementedError: FP8 or INT8 precision, naming what is missing.
        ValueError: `routes` of other sizes, sizes the strategy cannot serve, or a `world_size` that is not that of the
            process group.
    """

    route_table: Tensor
    active_route_table: Tensor | None

    def __init__(
        self,
        config: TRHashEngineConfig,
        *,
        routes: RouteTable | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        dtype = parameter_dtype(config.precision)
        summary.require_world_size(config)
        table = checked_table(config, route_table_of(config) if routes is None else routes)
        experts, width, inner, shared = config.num_experts, config.hidden_size, config.expert_width, config.shared_width
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self._config = config
        self._capacity = Capacity(experts, inner)
        self._aside: dict[str, Tensor] = {}  # tables whose buffers are on the meta device
        self._graphs = GraphPool(config.graph_buckets)
        self._last = _LastCall()
        self.expert_gate = nn.Parameter(torch.empty(experts, width, inner, **place))
        self.expert_up = nn.Parameter(torch.empty(experts, width, inner, **place))
        self.expert_down = nn.Parameter(torch.empty(experts, inner, width, **place))
        self.shared_gate = nn.Linear(width, shared, bias=False, **place) if shared else None
        self.shared_up = nn.Linear(width, shared, bias=False, **place) if shared else None
        self.shared_down = nn.Linear(shared, width, bias=False, **place) if shared else None
        self.register_buffer(ROUTE_TABLE, None)
        self.register_buffer(ACTIVE_TABLE, None, persistent=False)
        self._place(ROUTE_TABLE, table.experts, self.expert_gate.device)
        if not self.expert_gate.is_meta:
            self.reset_parameters()

    @property
    def config(self) -> TRHashEngineConfig:
        """The layer as it was allocated, with the route weights in use."""
        return self._config

    @property
    def capacity(self) -> Capacity:
        """Experts and columns in use."""
        return self._capacity

    @property
    def last_backend(self) -> BackendDecision | None:
        """Who computed the last call, and why not others; None before the first."""
        return self._last.decision

    @property
    def is_reduced(self) -> bool:
        """Whether fewer experts or columns are in use than are stored."""
        return self._capacity != (self._config.num_experts, self._config.expert_width)

    @property
    def routes(self) -> RouteTable:
        """The full route table, whatever the capacity."""
        return RouteTable(self._tables()[ROUTE_TABLE], self._config.num_experts)

    def reset_parameters(self) -> None:
        """Draw every weight from N(0, initializer_range²)."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=self._config.initializer_range)

    def forward(self, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """The layer's output.

        Args:
            hidden_states: [B, S, H], of the parameters' dtype; under autocast any floating one, and computed in autocast's.
                Autocast leaves float64 alone: hidden states and weights are both of it, or neither.
            token_ids: integers [B, S]. Ids outside 0..V-1 do what `config.out_of_range` says; nothing is masked.

        Returns:
            [B, S, H], the dtype of hidden_states.

        Raises:
            ValueError: shapes that do not fit, or no CUDA graph bucket for them.
            TypeError: ids that are not integers, or hidden states of another dtype than the weights.
            IndexError: under `out_of_range="error"`, an id outside the vocabulary.
            RuntimeError: the requested backend cannot serve the call, or the module is still on the meta device.
        """
        if isinstance(hidden_states, Tensor):  # a proxy of torch.fx is checked by the operation, when the graph runs
            self._check_call(hidden_states, token_ids)
        decision = self._decision(token_ids)
        if decision.selected is Backend.CUDA_GRAPH and self._may_replay(hidden_states):
            return self._replay(hidden_states, token_ids)
        return self._compute(hidden_states, token_ids, self._config.out_of_range, decision.lowering or AUTO)

    def set_route_weights(self, route_weights: Sequence[float]) -> None:
        """Exchange the weights of the route positions, for every backend at once.

        Raises:
            TypeError, ValueError: what the configuration refuses; nothing has changed then.
        """
        self._config = self._config.replaced(route_weights=tuple(route_weights))
        self._graphs.clear()

    def set_top_k_primary_weight(self, primary: float) -> None:
        """Give the primary route weight `primary`, and share the rest equally among the others.

        Raises:
            ValueError: outside 0..1, or not 1 where there is one route.
        """
        rest = self._config.top_k - 1
        self.set_route_weights((primary, *[(1 - primary) / rest] * rest) if rest else (primary,))

    def load_route_table(self, table: RouteTable | Tensor) -> None:
        """Exchange the route table. It is checked before anything changes; where the present one is on meta, it goes where the
        weights are.

        Raises:
            TypeError, ValueError: another shape or expert count than the layer's, ids out of range, or one twice for a token.
            RuntimeError: the capacity is reduced.
        """
        value = table if isinstance(table, RouteTable) else RouteTable(table, self._config.num_experts)
        checked_table(self._config, value)
        if self._capacity.num_experts != self._config.num_experts:
            raise RuntimeError(
                f"{self._capacity} is in use; restore all experts with set_active_capacity before loading a table"
            )
        if self.route_table.is_meta:
            self._place(ROUTE_TABLE, value.experts, self.expert_gate.device)
        else:
            with torch.no_grad():
                self.route_table.copy_(value.experts)
        self._graphs.clear()

    def set_active_capacity(
        self, num_experts: int | None = None, expert_width: int | None = None, *, routes: RouteTable | None = None
    ) -> None:
        """Use the first experts and the first columns of each; what is left out keeps its weights and gets zero gradients.

        All or nothing: on an error the layer is as it was. Back at full size every output is what it was, to the bit.

        Args:
            num_experts: at most E, at least K; None leaves it.
            expert_width: at most W; None leaves it.
            routes: the table for that many experts; None rebuilds it from the configuration.

        Raises:
            TypeError, ValueError: sizes that are not possible, or a table that cannot be rebuilt because it was loaded.
        """
        asked = checked_capacity(
            self._config,
            self._capacity.num_experts if num_experts is None else num_experts,
            self._capacity.expert_width if expert_width is None else expert_width,
        )
        if asked.num_experts == self._config.num_experts:
            if routes is not None:
                raise ValueError("routes are for a reduced number of experts; exchange the full table with load_route_table")
            active = None
        elif routes is None and asked.num_experts == self._capacity.num_experts:
            active = self._tables().get(ACTIVE_TABLE)
        else:
            value = reduced_routes(self._config, self.routes, asked.num_experts) if routes is None else routes
            active = checked_table(self._config.replaced(num_experts=asked.num_experts), value).experts
        self._place(ACTIVE_TABLE, active, self.route_table.device)
        self._capacity = asked
        self._graphs.clear()

    def capability_summary(self, device_type: torch.device | str = "cpu") -> dict[str, Any]:
        """What this layer is and who would compute it on a device of this type; see `summary.capability_summary`."""
        circumstances = self._circumstances(torch.device(device_type).type)
        return summary.capability_summary(circumstances, decide(circumstances), self._capacity, self.expert_gate.dtype)

    def _circumstances(self, device_type: str) -> Circumstances:
        return Circumstances(self._config, device_type, self.is_reduced)

    def _check_call(self, hidden_states: Tensor, token_ids: Tensor) -> None:
        if hidden_states.dim() != 3:
            raise ValueError(f"hidden_states must be [batch, sequence, hidden], got {tuple(hidden_states.shape)}")
        if token_ids.shape != hidden_states.shape[:2]:
            raise ValueError(
                f"token_ids must match hidden batch/sequence dimensions, got {tuple(token_ids.shape)} for "
                f"{tuple(hidden_states.shape)}"
            )
        if hidden_states.shape[2] != self._config.hidden_size:
            raise ValueError(f"expected hidden size {self._config.hidden_size}, got {hidden_states.shape[2]}")
        require_integer_ids(token_ids)
        if self.route_table.is_meta and not hidden_states.is_meta:
            raise RuntimeError("the module is on the meta device; materialise it with to_empty(device=…) and load its state")

    def _decision(self, token_ids: Tensor) -> BackendDecision:
        """Who computes this call; the last answer where nothing it rests on has changed."""
        device_type, tokens = self.route_table.device.type, token_ids.numel()
        if torch.compiler.is_compiling() or not isinstance(tokens, int):  # a symbol or a proxy: the operation chooses
            decision = decide(self._circumstances(device_type))
            if torch.compiler.is_compiling() and not torch.compiler.is_exporting():  # a compiled call is one, a trace none
                self._last.decision, self._last.rests_on = decision, ()
            return decision
        rests_on = self._config, self._capacity, device_type, tokens
        if self._last.decision is None or self._last.rests_on != rests_on:
            choice = choose(
                tokens=tokens,
                num_experts=self._capacity.num_experts,
                expert_width=self._capacity.expert_width,
                weights=[weight * self._config.routed_output_scale for weight in self._config.route_weights],
                device_type=device_type,
            )
            decision = decide(self._circumstances(device_type))
            lowering = choice.lowering if decision.selected is Backend.PYTORCH else None
            self._last.decision, self._last.rests_on = replace(decision, lowering=lowering), rests_on
        return self._last.decision

    def _compute(self, hidden_states: Tensor, token_ids: Tensor, out_of_range: str, lowering: str) -> Tensor:
        config, table = self._config, self.route_table if self.active_route_table is None else self.active_route_table
        settings = list(config.route_weights), config.shared_output_scale, config.routed_output_scale, out_of_range, lowering
        shared = [layer for layer in (self.shared_gate, self.shared_up, self.shared_down) if layer is not None]
        inside = all(is_its_weight(layer) for layer in shared)
        weights = [layer.weight for layer in shared] if shared and inside else [None] * 3
        output: Tensor = TR_HASH_MLP(hidden_states, token_ids, table, *self._experts(), *weights, *settings)
        if inside:
            return output
        return output + by_modules(hidden_states, shared, config.shared_output_scale).to(output.dtype)

    def _may_replay(self, hidden_states: Tensor) -> bool:
        """Not where the operation is to become part of another graph, nor in replicas of DataParallel, made for one call."""
        return not (is_traced(hidden_states) or hasattr(self, "_is_replica") or is_capturing(hidden_states.device))

    def _replay(self, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("CUDA Graph TR-Hash requires eval mode and torch.no_grad(); call .eval()")
        if self._config.out_of_range == "error":
            require_in_range(token_ids, self._config.vocab_size)

        def compute(hidden: Tensor, ids: Tensor) -> Tensor:
            return self._compute(hidden, ids, "clamp", AUTO)

        reads, settings = [*self.parameters(), *self.buffers()], (self._config, self._capacity)
        return self._graphs.run(compute, hidden_states, token_ids, reads=reads, settings=settings)

    def _experts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gate, up and down in use."""
        gate, up, down = self.expert_gate, self.expert_up, self.expert_down
        if not self.is_reduced:
            return gate, up, down
        experts, width = self._capacity
        return gate[:experts, :, :width], up[:experts, :, :width], down[:experts, :width]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TRHashEngine:
        """Move or cast parameters. The tables move along, stay bytes, and keep their content through `meta` and `to_empty`."""
        before = self._tables()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, table in before.items():
            self._place(name, table, getattr(self, name).device)
        self._graphs.clear()
        return self

    def _tables(self) -> dict[str, Tensor]:
        """The content of each table, whether its buffer has it or it is kept aside."""
        held = {name: getattr(self, name) for name in (ROUTE_TABLE, ACTIVE_TABLE)}
        return {
            name: self._aside.get(name, table) if table.is_meta else table for name, table in held.items() if table is not None
        }

    def _place(self, name: str, table: Tensor | None, device: torch.device) -> None:
        """Set a table's buffer, and with it what is kept aside: content that `meta` would lose, and nothing else."""
        placed = None if table is None else table.to(device)
        if table is not None and not table.is_meta and device.type == "meta":
            self._aside[name] = table.cpu()
        else:
            self._aside.pop(name, None)
        setattr(self, name, placed)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, entry in derived_entries(self.routes).items():
            destination[prefix + name] = entry.to(self.route_table.device)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Check the table first; where it or what was derived from it is wrong, nothing is loaded here or below.

        Afterwards tables are where the weights are, also where these were assigned to a module on the meta device.
        """
        entry = state_dict.get(prefix + ROUTE_TABLE)
        try:
            value = stored_table(self._config, state_dict, prefix, self.routes)
            if self.active_route_table is not None and value != self.routes:
                raise ValueError(f"{self._capacity} is in use; restore all experts before loading another route table")
        except (TypeError, ValueError) as error:
            error_msgs.append(f"{prefix or 'engine '}route table refused, nothing loaded: {error}")
            for name in [name for name in state_dict if name.startswith(prefix)]:
                del state_dict[name]
            for name, child in self.named_children():  # they load next, and find what they hold
                state_dict.update(child.state_dict(prefix=f"{prefix}{name}.", keep_vars=True))
            return
        for name in DERIVED:
            state_dict.pop(prefix + name, None)
        if entry is not None:
            state_dict[prefix + ROUTE_TABLE] = value.experts.to(entry.device)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        place = self.expert_gate.device if self.route_table.is_meta else self.route_table.device
        for name, table in self._tables().items():
            self._place(name, table, place)
        self._graphs.clear()
