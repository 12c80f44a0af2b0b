"""How fast a loaded model answers here, and how much of the machine's bandwidth that is. Measures; decides nothing.

report = bench(runtime.model, runtime.decoding, caching=runtime.caching, name="mine", prompts=(128, 512))
append(report.rows(), Path("decode.csv"))
"""

from mmswap.bench.machine import Machine, copy_rate
from mmswap.bench.measure import Report, bench
from mmswap.bench.quantiles import Spread, spread
from mmswap.bench.table import COLUMNS, append, check

__all__ = ["COLUMNS", "Machine", "Report", "Spread", "append", "bench", "check", "copy_rate", "spread"]
