"""What may follow what in training: stages, refinement plans, and what a refined layer must still be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from .convert import PRIMARY, TABLE
from .stored import DERIVED, ROUTE_TABLE

PRETRAINING, REFINEMENT, FINETUNING = STAGES = ("pretraining", "refinement", "supervised-finetuning")
VISION = "vision"
UNIQUE_CORE = "unique_core"
PLAN_FIELDS = (
    "format",
    "dataset",
    "revision",
    "seq_len",
    "selection_mode",
    "row_alignment",
    "unique_tokens",
    "source_unique_tokens",
)
COUNTS = ("seq_len", "row_alignment", "unique_tokens")
ROUTES = (ROUTE_TABLE, *DERIVED, TABLE, PRIMARY)


def validate_training_stage_transition(
    family: str, source: str, target: str, *, same_corpus: bool | None = None, fresh_optimizer: bool | None = None
) -> None:
    """Refuse a stage that must not follow another.

    Refinement follows pretraining alone, on the same corpus, with a fresh optimizer. Supervised finetuning follows
    refinement or itself; of a vision model it follows pretraining or refinement. Pretraining follows nothing.

    Args:
        family: `vision`, or any other.
        source, target: one of `STAGES`.
        same_corpus, fresh_optimizer: must be True, not merely true-like, for refinement.

    Raises:
        ValueError: the transition is refused, with the rule.
    """
    for name, stage in (("source", source), ("target", target)):
        if stage not in STAGES:
            raise ValueError(f"{name} stage must be one of {STAGES}, got {stage!r}")
    if target == PRETRAINING:
        raise ValueError(f"pretraining is a lineage root, not a transition target (from {source})")
    if target == REFINEMENT:
        _require(source == PRETRAINING, f"refinement must follow pretraining, not {source}")
        _require(same_corpus is True, f"refinement needs same_corpus=True, got {same_corpus!r}")
        _require(fresh_optimizer is True, f"refinement needs fresh_optimizer=True, got {fresh_optimizer!r}")
    elif family == VISION:
        _require(source != FINETUNING, "supervised finetuning of a vision model must follow pretraining or refinement")
    else:
        _require(source != PRETRAINING, "direct pretraining -> supervised-finetuning is forbidden; refine first")


def validate_refinement_plan(refinement: Mapping[str, Any], pretrain: Mapping[str, Any]) -> str:
    """Refuse a refinement that is not one pass over the unique core of the pretraining corpus.

    Args:
        refinement, pretrain: plans with the fields of `PLAN_FIELDS` and `phases`, each with `name`, `passes` and
            `sources` ({name: [{"file", "rows"}, …]}); the refinement also with `trained_tokens` and `source_passes`.

    Returns:
        The corpus fingerprint that both share: SHA-256 of compact ASCII JSON with sorted keys, of `PLAN_FIELDS` and the
        sources of the phase `unique_core`, whose files keep their order.

    Raises:
        ValueError: what is missing, of another form, repeated or different.
    """
    core = _core_phase("refinement", refinement)
    fingerprints = [plan_fingerprint(plan) for plan in (refinement, pretrain)]
    _require(len(refinement["phases"]) == 1, f"refinement must have the phase {UNIQUE_CORE} alone")
    trained, unique = refinement.get("trained_tokens"), refinement["unique_tokens"]
    _require(type(trained) is int and trained == unique, f"refinement trains {trained} tokens, the unique core has {unique}")
    passes = refinement.get("source_passes")
    _require(isinstance(passes, Mapping) and bool(passes), "refinement needs source_passes, a mapping of source to 1")
    assert isinstance(passes, Mapping)
    _require(
        passes.keys() == core["sources"].keys(), f"source_passes names {sorted(passes)}, the core has {sorted(core['sources'])}"
    )
    _require(all(_is_one(count) for count in passes.values()), f"source_passes must be 1 each, got {dict(passes)}")
    _require(fingerprints[0] == fingerprints[1], f"the corpora differ: {fingerprints[0]} and {fingerprints[1]}")
    return fingerprints[0]


def plan_fingerprint(plan: Mapping[str, Any]) -> str:
    """The fingerprint of a plan's unique core; see `validate_refinement_plan`.

    Raises:
        ValueError: a field is missing or null (two plans that both leave it out would look equal), one of `COUNTS` is not a
            positive int, or there is no core phase.
    """
    missing = [field for field in PLAN_FIELDS if plan.get(field) is None]
    _require(not missing, f"the plan has no {', '.join(missing)}")
    for field in COUNTS:
        _require(type(plan[field]) is int and plan[field] > 0, f"{field} must be a positive int, got {plan[field]!r}")
    sources = {
        name: [{"file": entry["file"], "rows": entry["rows"]} for entry in entries]
        for name, entries in _core_phase("plan", plan)["sources"].items()
    }
    written = {field: plan[field] for field in PLAN_FIELDS} | {"sources": sources}
    text = json.dumps(written, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def validate_refined_state(source: Mapping[str, torch.Tensor], refined: Mapping[str, torch.Tensor]) -> None:
    """Refuse a refined state dict that differs from its source in more than values of weights.

    Token ids mean what they meant, so route tables and what was derived from them (`ROUTES`) must be equal; names, shapes
    and dtypes of weights must, too.

    Args:
        source, refined: state dicts of engines or of models that hold some, under the names of the engine or those of the
            serving runtime.

    Raises:
        ValueError: the first entry that differs, and how.
    """
    if source.keys() != refined.keys():
        raise ValueError(f"refinement changed the layout: {sorted(source.keys() ^ refined.keys())} are in one state alone")
    for name, before in source.items():
        after = refined[name]
        if name.rpartition(".")[2] in ROUTES:
            same = before.shape == after.shape and bool((before.cpu() == after.cpu()).all())
            _require(same, f"refinement changed {name}; token ids would reach other experts")
        elif (before.shape, before.dtype) != (after.shape, after.dtype):
            raise ValueError(
                f"refinement changed {name} from {tuple(before.shape)} {before.dtype} to {tuple(after.shape)} {after.dtype}"
            )


def _core_phase(what: str, plan: Mapping[str, Any]) -> Mapping[str, Any]:
    phases: Any = plan.get("phases")
    listed = isinstance(phases, list | tuple) and all(isinstance(phase, Mapping) for phase in phases)
    _require(listed, f"the {what} must have phases, a list of mappings")
    core: list[Mapping[str, Any]] = [phase for phase in phases if phase.get("name") == UNIQUE_CORE]
    _require(len(core) == 1, f"the {what} must have exactly one phase {UNIQUE_CORE}, got {[p.get('name') for p in phases]}")
    _require(_is_one(core[0].get("passes")), f"{UNIQUE_CORE} of the {what} must have passes 1, got {core[0].get('passes')!r}")
    sources = core[0].get("sources")
    _require(isinstance(sources, Mapping) and bool(sources), f"{UNIQUE_CORE} of the {what} has no sources, a mapping to files")
    wrong = [name for name, entries in core[0]["sources"].items() if not _lists_files(entries)]
    _require(not wrong, f"source {', '.join(map(str, wrong))} of the {what} must be a list of files, each with file and rows")
    return core[0]


def _lists_files(entries: object) -> bool:
    if not isinstance(entries, list | tuple) or not entries:
        return False
    return all(isinstance(entry, Mapping) and None not in (entry.get("file"), entry.get("rows")) for entry in entries)


def _is_one(count: object) -> bool:
    return type(count) is int and count == 1


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
