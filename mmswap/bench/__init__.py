"""How fast a loaded model answers here, and how much of the machine's bandwidth that is. Measures; decides nothing.

report = bench(runtime.model, runtime.lean, tokens=64, prompts=(128, 512))
append(report.rows(), Path("decode.csv"))
"""

from mmswap.bench.machine import Machine, copy_rate
from mmswap.bench.measure import Report, bench
from mmswap.bench.quantiles import Spread, spread
from mmswap.bench.table import COLUMNS, append

__all__ = ["COLUMNS", "Machine", "Report", "Spread", "append", "bench", "copy_rate", "spread"]
