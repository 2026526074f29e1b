"""The diff of a fold with one table for each execution class, in its three forms."""

from __future__ import annotations

import re
from typing import Any

from expecttest import assert_expected_inline

from foldfx.inspection.diff import diff_graphs
from foldfx.inspection.diff_markdown import diff_markdown
from foldfx.inspection.diff_text import diff_text
from foldfx.inspection.outline_of import outline_of


def test_a_fold_by_execution_class(planted: Any, rounding: Any) -> None:
    planted.by_count(lambda count: int(count <= 4))
    result = planted.fold(rounding(), profiles=[{"max_rows": 4, "evaluation_rows": 4}])
    assert result.accepted
    run = result._run
    diff = diff_graphs(outline_of(run.captured, "captured"), outline_of(run.program, "folded"))
    text = diff_text(diff)
    assert_expected_inline(
        re.sub(r"; conftest\.py:\d+", "", text),
        """\
--- captured
+++ folded
changes: 12 added, 10 removed, 5 state, 1 signature; 10 → 12 calls
logical 5,120 → 2,664 B (-2,456), backing 5,120 → 2,664 B (-2,456)
state freed: logical 5,120 B, backing 5,120 B; added: logical 2,664 B, backing 2,664 B
@@ 10:12 fold_tokens: embedding, split, getitem, … 6 more, rounded → sym_numel_default, full_default, bucketize_tensor, … 8 more, embedding_default_1 @@
-embedding = aten.embedding(weight, ids)  # float32[s0, s1, 32]
-split = aten.split.Tensor(embedding, 8, -1)  # (float32[s0, s1, 8], strides [32*s1, 32, 1], float32[s0, s1, 8], strides [32*s1, 32, 1], float32[s0, s1, 8], strides [32*s1, 32, 1], float32[s0, s1, 8], strides [32*s1, 32, 1])
-getitem = operator.getitem(split, 0)  # float32[s0, s1, 8], strides [32*s1, 32, 1]
-getitem_1 = operator.getitem(split, 1)  # float32[s0, s1, 8], strides [32*s1, 32, 1]
-getitem_2 = operator.getitem(split, 2)  # float32[s0, s1, 8], strides [32*s1, 32, 1]
-getitem_3 = operator.getitem(split, 3)  # float32[s0, s1, 8], strides [32*s1, 32, 1]
-maximum = aten.maximum(getitem, getitem_1)  # float32[s0, s1, 8]
-maximum_1 = aten.maximum(getitem_2, getitem_3)  # float32[s0, s1, 8]
-maximum_2 = aten.maximum(maximum, maximum_1)  # float32[s0, s1, 8]
-rounded = foldfx_tests.rounded(maximum_2)  # float32[s0, s1, 8]; its readers take embedding_default_1
+sym_numel_default = aten.sym_numel(ids)  # s0*s1
+full_default = aten.full([], sym_numel_default, dtype=torch.int64, device=device(type='cpu'))  # int64[]
+bucketize_tensor = aten.bucketize.Tensor(full_default, foldfx_tables.ids.rounded_bounds)  # int64[]
+index_tensor = aten.index.Tensor(foldfx_tables.ids.rounded_classes, [bucketize_tensor])  # int64[1]
+squeeze_dim = aten.squeeze.dim(index_tensor, 0)  # int64[]
+expand_as_default = aten.expand_as(squeeze_dim, ids)  # int64[s0, s1], strides [0, 0]
+embedding_default = aten.embedding(foldfx_tables.ids.rounded_rows, ids)  # uint8[s0, s1, 2]
+unsqueeze_default = aten.unsqueeze(expand_as_default, -1)  # int64[s0, s1, 1], strides [0, 0, 1]
+gather_default = aten.gather(embedding_default, -1, unsqueeze_default)  # uint8[s0, s1, 1]
+squeeze_dim_1 = aten.squeeze.dim(gather_default, -1)  # uint8[s0, s1]
+_to_copy_default = aten._to_copy(squeeze_dim_1, dtype=torch.int64)  # int64[s0, s1]
+embedding_default_1 = aten.embedding(foldfx_tables.ids.rounded, _to_copy_default)  # float32[s0, s1, 8]
@@ state: freed 5,120 B, added 2,664 B @@
-weight  # parameter, float32[40, 32]; 5,120 B
+foldfx_tables.ids.rounded_bounds  # buffer, int64[1]; 8 B
+foldfx_tables.ids.rounded_classes  # buffer, int64[2, 1]; 16 B
+foldfx_tables.ids.rounded  # buffer, float32[80, 8]; 2,560 B
+foldfx_tables.ids.rounded_rows  # buffer, uint8[40, 2]; 80 B
@@ signature @@
-input check: GuardsFn
+input check: InputGuards""",  # noqa: E501
    )
    markdown = diff_markdown(diff)
    assert [line for line in text.splitlines() if line[0] in "-+" and line not in markdown] == ["--- captured", "+++ folded"]
    (group,) = diff.to_dict()["provenance"]
    assert (group["kind"], group["by"]) == ("10:12", ["fold_tokens"])
