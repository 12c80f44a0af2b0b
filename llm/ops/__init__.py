"""The op table: one schema and one reference for each op, and the backends that compute it. Knows no model.

    y = torch.ops.mmswap.rms_norm(x, weight, 1e-6, 0.0, True)      # registered by importing this package
    run = resolve("rms_norm", x, weight, 1e-6, 0.0, True).run      # the same, chosen once, without the dispatcher

`docs/ops.md` lists the ops. `schema.py` is what they take, `reference.py` what they mean.
"""

import mmswap.llm.ops.entry  # noqa: F401 - registers the ops
from mmswap.llm.ops.backends import AUTO, Implementation, Resolved, forced, resolve, use, using
from mmswap.llm.ops.schema import OPS

__all__ = ["AUTO", "OPS", "Implementation", "Resolved", "forced", "resolve", "use", "using"]
