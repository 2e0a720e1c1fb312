"""What a linear layer costs on this CPU in float32, in bfloat16, and in bfloat16 with widened products, in one run.

    python benchmarks/bfloat16_products.py [--threads 1] [--rows 1 16 512]

The shapes are those of Qwen2.5-0.5B: queries with keys and values, gate with up, down, head. Prints milliseconds of a
forward pass, the median of five; widened products are what trainer and plug-in use where the CPU has no bfloat16
instructions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from tracegrad.consumers.engine.vllm_plugin import make_widened_linear
from tracegrad.trainer.model.widened import multiplies_bfloat16

_SHAPES = ((896, 1152), (896, 9728), (4864, 896), (896, 151_936))


def _milliseconds(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds)


@torch.inference_mode()
def main() -> None:
    """Prints one line a shape and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 512], help="tokens that go through at once")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    widened_linear = make_widened_linear()
    print(f"bfloat16 instructions: {'yes' if multiplies_bfloat16() else 'no'}; {given.threads} threads; milliseconds")
    print(f"{'rows':>5} {'in':>5} {'out':>7} {'float32':>9} {'bfloat16':>9} {'widened':>9}")
    for rows in given.rows:
        for num_in, num_out in _SHAPES:
            x, weight = torch.randn(rows, num_in), torch.randn(num_out, num_in)
            narrow, narrow_weight = x.bfloat16(), weight.bfloat16()
            exact = _milliseconds(lambda: linear(x, weight))  # noqa: B023 - used at once
            native = _milliseconds(lambda: linear(narrow, narrow_weight))  # noqa: B023
            widened = _milliseconds(lambda: widened_linear(narrow, narrow_weight, None))  # noqa: B023
            print(f"{rows:5} {num_in:5} {num_out:7} {exact:9.1f} {native:9.1f} {widened:9.1f}", flush=True)


if __name__ == "__main__":
    main()
