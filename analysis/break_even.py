"""The byte balance of a fold as an expression in the vocabulary: where it begins and ends to pay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy

V = sympy.Symbol("V", positive=True, integer=True)
"""The vocabulary: rows of every table."""


@dataclass(frozen=True)
class BreakEven:
    """Bytes freed and bytes of tables, symbolically.

    Attributes:
        before: freed state, in V, row widths e_… and parameter sizes p_… (elements).
        after: tables, in V and row widths w_… (elements).
        sizes: the number each symbol but V stands for.
    """

    before: sympy.Expr
    after: sympy.Expr
    sizes: dict[sympy.Symbol, int]

    @property
    def vocabulary(self) -> sympy.Rational | None:
        """The V at which both are equal; None where the balance has the same sign for every V.

        The fold saves bytes below it where tables are wider than the rows they replace, above it otherwise.
        """
        balance = sympy.expand((self.before - self.after).subs(self.sizes))
        slope, fixed = balance.coeff(V, 1), balance.coeff(V, 0)
        if slope == 0 or -fixed / slope <= 0:
            return None
        return sympy.Rational(-fixed, slope)

    def __str__(self) -> str:
        balance = sympy.expand((self.before - self.after).subs(self.sizes))
        slope = balance.coeff(V, 1)
        if (even := self.vocabulary) is not None:
            verdict = f"saves for V {'<' if slope < 0 else '>'} {float(even):,.1f}"
        else:
            verdict = "saves at any V" if balance.subs(V, 1) > 0 else "saves at no V"
        return f"{self.before} → {self.after} B; {verdict}"


Term = tuple[str, int, int]
"""(name, elements in a row or in all, bytes an element)."""


def break_even(freed_rows: Iterable[Term], freed_fixed: Iterable[Term], tables: Iterable[tuple[Term, int | None]]) -> BreakEven:
    """The balance of one fold.

    Args:
        freed_rows: freed state with a row for each id.
        freed_fixed: other freed state.
        tables: the tables, each with its number of rows; None for one row an id.
    """
    sizes: dict[sympy.Symbol, int] = {}

    def symbol(prefix: str, name: str, value: int) -> sympy.Symbol:
        made = sympy.Symbol(f"{prefix}_{name.replace('.', '_')}", positive=True, integer=True)
        if made in sizes:
            made = sympy.Symbol(f"{made.name}_{len(sizes)}", positive=True, integer=True)
        sizes[made] = value
        return made

    before = sum((V * item * symbol("e", name, width) for name, width, item in freed_rows), sympy.Integer(0))
    before += sum((item * symbol("p", name, count) for name, count, item in freed_fixed), sympy.Integer(0))
    after = sum(
        ((V if rows is None else rows) * item * symbol("w", name, width) for (name, width, item), rows in tables),
        sympy.Integer(0),
    )
    return BreakEven(before, after, sizes)
