"""The trainer's step on one GPU: its speed beside a plain loop, memory, storing, whether it repeats, how near it is.

    python benchmarks/gpu.py [--only CASE,CASE] [--budget SECONDS] [--json FILE] [--work-dir DIR]
    python benchmarks/gpu.py --tiny --device cpu          # the same at small sizes: that all of it runs

Needs no network, no weights and no tokenizer: models are made from configurations. Learning rate 0, so each step is the
same work. Cases, in order (a case that fails or runs out of memory is told, and the next begins; none begins after the
budget): check, 1.5B-16k, 7B-lora-16k, 0.5B-700, 0.5B-16k, shared (128 rows in groups of 8 that share a prompt of 400
tokens, 60 trained), store, bits, numerics. Beside each step: |log pi - log mu| of the compiled and of the eager layers
against a row-by-row eager pass, the nearest to an engine that is here. Ends with 1 where the plain loop tells another
loss or gradient norm than the trainer.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import tracegrad.trainer.model.policy as policy_module
from tracegrad.schemas.ids import RunHash
from tracegrad.trainer.algorithm.recipes import RECIPES
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.packing import micro_batches
from tracegrad.trainer.batch.rows import TrainingRow
from tracegrad.trainer.config import TrainerConfig, TrainerHandles
from tracegrad.trainer.model.policy import configure_torch, load_policy
from tracegrad.trainer.store.checkpoint import Checkpoints, CheckpointState, Progress
from tracegrad.trainer.store.publish import Publisher

RUN, RECIPE, PEAK = RunHash("7c1f3e9a"), RECIPES["rloo_clip"].recipe, 989e12
"""MFU is of an H100 SXM's dense bfloat16 on paper, by 6ND; 4ND of adapters."""
QWEN = {"vocab_size": 151_936, "num_key_value_heads": 2, "tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": QWEN | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5B": QWEN | {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    "7B": {"vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
           "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "small": {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
              "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False},
}  # fmt: skip
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
STEPS = {  # model, LoRA rank, groups, rollouts of a group, prompt, tokens, trained
    "1.5B-16k": ("1.5B", None, 2, 2, 0, 16_384, 6_500),
    "7B-lora-16k": ("7B", 16, 1, 2, 0, 16_384, 6_500),
    "0.5B-700": ("0.5B", None, 24, 8, 0, 700, 280),
    "0.5B-16k": ("0.5B", None, 4, 4, 0, 16_384, 6_500),
    "shared": ("0.5B", None, 16, 8, 400, 460, 60),
}
OTHERS = ("check", "store", "bits", "numerics")
SMALL_ROWS = (4, 4, 0, 700, 280)
FOUND: list[dict[str, Any]] = []


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="small sizes")
    parser.add_argument("--only", default="", help=f"of {', '.join([*STEPS, *OTHERS])}")
    parser.add_argument("--budget", type=float, default=230.0, help="seconds after which no case begins")
    parser.add_argument("--work-dir", type=Path, help="where models, checkpoints and versions are written")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", nargs=2, metavar=("FILE", "DTYPE"), help="(its own second process)")
    return parser.parse_args()


ARGS = options()
BEGAN, IS_TINY = time.monotonic(), ARGS.tiny
DEVICE = configure_torch(TrainerConfig(device=ARGS.device), seed=0)
CUDA = DEVICE.type == "cuda"
WORK = ARGS.work_dir or Path(tempfile.mkdtemp(prefix="tracegrad-gpu-"))


def say(case: str, text: str, **figures: Any) -> None:
    """One line, and its figures for --json."""
    FOUND.append({"case": case, "text": text, **figures})
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {case}: {text}", flush=True)


@contextlib.contextmanager
def told(case: str) -> Iterator[None]:
    """Whatever ends the case is told; nothing of it stays on the device."""
    try:
        yield
    except Exception as error:
        say(case, f"FAILED {type(error).__name__}: {str(error)[:300]}", failed=True)
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def wait() -> float:
    """The time, once the device is done."""
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter()


def shape_of(name: str) -> dict[str, Any]:
    """Its dimensions here."""
    return SHAPES[name] | TINY if IS_TINY else SHAPES[name]


def model_of(name: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Random weights; a small model's are equal on every device, and far enough from 0 to be told apart."""
    config = transformers.Qwen2Config(
        **shape_of(name), max_position_embeddings=32_768, bos_token_id=None, eos_token_id=1, pad_token_id=0
    )
    torch.manual_seed(0)
    with device:
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    if name == "small":
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for one in model.parameters():
                one.copy_(0.03 * torch.randn(one.shape, generator=generator) + (one.dim() == 1))
    return model


def learner_of(name: str, device: torch.device = DEVICE, **changes: Any) -> SingleLearner:
    """As the trainer makes it, but that its weights are made and not read."""
    folder = WORK / f"model-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    config = TrainerConfig(**{"lr": 0.0, "warmup_steps": 0, "device": str(device), **changes})
    original = policy_module.read_model
    policy_module.read_model = lambda folder, dtype: (model_of(name, dtype, device), [])
    try:
        return SingleLearner(load_policy(config, str(folder), device), config, RECIPE)
    finally:
        policy_module.read_model = original


def rows_of(groups: int, size: int, prompt: int, tokens: int, trained: int, vocabulary: int) -> list[TrainingRow]:
    """Of groups that share their prompt; a row's last tokens are trained. Short rows differ in length."""
    if IS_TINY:
        groups, size, prompt, tokens, trained = 2, 2, prompt // 50, max(24, tokens // 256), max(6, trained // 256)
    random, rows = np.random.default_rng(0), list[TrainingRow]()
    for group in range(groups):
        start = random.integers(2, vocabulary, prompt, dtype=np.int32)
        for member in range(size):
            num = tokens if tokens > 4096 or prompt else int(tokens * random.uniform(0.75, 1.25))
            mask = np.arange(num) >= num - trained
            mu = np.minimum(random.normal(-math.log(vocabulary), 0.05, num), 0.0)
            row = TrainingRow(
                rollout_id=f"{group}-{member}",
                token_ids_T=np.concatenate([start, random.integers(2, vocabulary, num - prompt, dtype=np.int32)]),
                loss_mask_T=mask,
                sampler_logprobs_T=np.where(mask, mu, 0.0).astype(np.float32),
                advantages_T=np.where(mask, 1.0 - 2.0 * (member % 2), 0.0).astype(np.float32),
                temperatures_T=np.ones(num, np.float32),
                versions_T=np.where(mask, 0, -1),
                token_weight=1.0 / (groups * size * trained),
            )
            rows.append(row)
    return rows


def plain_optimiser(model: Any) -> torch.optim.AdamW:
    """Of float32 masters of its own."""
    masters = [one.detach().float().clone().requires_grad_(True) for one in model.parameters()]
    return torch.optim.AdamW(masters, lr=0.0, fused=CUDA or None)


def plain_step(
    model: Any, adamw: torch.optim.AdamW, rows: Sequence[TrainingRow], *, max_tokens: int
) -> tuple[float, float]:
    """What anyone would write: padded rows, logits of the trained tokens, fused AdamW. Loss and gradient norm."""
    masters = adamw.param_groups[0]["params"]
    total = torch.zeros((), device=DEVICE, dtype=torch.float64)
    for batch in micro_batches(rows, max_tokens=max_tokens):
        here = batch.to(DEVICE)
        hidden_BLD = model.model(input_ids=here.input_ids_BL, use_cache=False).last_hidden_state
        hidden_ND = hidden_BLD[:, here.keep_K].flatten(0, 1)[here.trained_N]
        targets_N = here.targets_BK.flatten()[here.trained_N]
        # The head a few rows at a time, or its logits would be what runs out of memory.
        parts = zip(hidden_ND.split(4096), targets_N.split(4096), strict=True)
        logprobs_N = torch.cat(
            [torch.utils.checkpoint.checkpoint(chosen, model, *part, use_reentrant=False) for part in parts]
        )
        ratios_N, a_N = (logprobs_N - here.sampler_logprobs_N).exp(), here.advantages_N
        f_N = torch.minimum(ratios_N * a_N, ratios_N.clamp(1 - RECIPE.low, 1 + RECIPE.high) * a_N)
        f_N = torch.where(a_N < 0, torch.maximum(f_N, (RECIPE.dual or math.inf) * a_N), f_N)
        loss = -(f_N * here.weights_N).sum(dtype=torch.float64)
        loss.backward()
        total += loss.detach()
        for master, one in zip(masters, model.parameters(), strict=True):
            master.grad = one.grad.float() if master.grad is None else master.grad.add_(one.grad)
            one.grad = None
    norm = torch.nn.utils.clip_grad_norm_(masters, 1.0)
    adamw.step()
    adamw.zero_grad()
    return float(total), float(norm)


def chosen(model: Any, hidden_nD: torch.Tensor, targets_n: torch.Tensor) -> torch.Tensor:
    """[n] log pi of the targets."""
    logits_nV = model.lm_head(hidden_nD).float()
    return logits_nV.gather(1, targets_n[:, None])[:, 0] - torch.logsumexp(logits_nV, -1)


def fastest(work: Callable[[], Any], *, times: int = 3) -> tuple[float, float, Any]:
    """Seconds and GiB of the fastest of some tries, the first left out; what it gave."""
    took, made = [], None
    for _ in range(times):
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        began = wait()
        made = work()
        took.append(wait() - began)
    return min(took[1:]), torch.cuda.max_memory_allocated() / 2**30 if CUDA else math.nan, made


def step_case(case: str) -> None:
    """One step of the trainer, its profile, the plain loop on the same rows, and how near its logprobs are."""
    name, rank, *sizes = STEPS[case]
    shape, recompute = shape_of(name), "layers" if case in ("1.5B-16k", "7B-lora-16k") else "auto"
    rows = rows_of(*sizes, shape["vocab_size"])
    learner = learner_of(name, lora_rank=rank, recompute=recompute)
    seconds, gib, result = fastest(lambda: learner.step(rows, version=0, step=1), times=2 if "16k" in case else 3)
    d, kv = shape["hidden_size"], shape["num_key_value_heads"] * shape["hidden_size"] // shape["num_attention_heads"]
    layer = 2 * d * d + 2 * d * kv + 3 * d * shape["intermediate_size"]
    num, tokens = (
        shape["num_hidden_layers"] * layer + shape["vocab_size"] * d,
        sum(len(row.token_ids_T) for row in rows),
    )
    mfu = (4 if rank else 6) * num * tokens / seconds / PEAK
    say(case, f"{seconds:.2f} s, {tokens / seconds:,.0f} tokens/s, MFU {mfu:.1%}, {gib:.1f} GiB, micro-batches of "
        f"{learner._size.tokens} tokens, loss {result.loss:.6f}, norm {result.grad_norm:.6f}",
        s=seconds, tokens_s=tokens / seconds, mfu=mfu, gib=gib, limit=learner._size.tokens)  # fmt: skip
    profile(case, learner, rows)
    few = rows[:4]
    near(case, learner, learner_of(name, lora_rank=rank, compile="none", micro_batch_tokens=1), few)
    limit = learner._size.tokens
    if rank is None and "16k" not in case:
        model = model_of(name, torch.bfloat16 if CUDA else torch.float32, DEVICE)
        adamw = plain_optimiser(model)
        took, *_ = fastest(lambda: plain_step(model, adamw, rows, max_tokens=limit))
        say(case, f"plain loop {took:.2f} s, trainer {took / seconds:.2f} times as fast", plain_s=took)


def profile(case: str, learner: SingleLearner, rows: Sequence[TrainingRow]) -> None:
    """Of the whole step: how busy the device is, how often the host waits for it, which kernels take the time."""
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if CUDA else [])]
    began = wait()
    with torch.profiler.profile(activities=kinds) as seen:
        learner.step(rows, version=0, step=1)
        took = wait() - began
    events = seen.key_averages()
    busy = sum(one.self_device_time_total for one in events) / 1e6
    waits = sum(one.count for one in events if "Synchronize" in one.key or one.key == "aten::_local_scalar_dense")
    num = sum(1 for _ in micro_batches(rows, max_tokens=learner._size.tokens))
    by_time = sorted(events, key=lambda one: -(one.self_device_time_total if CUDA else one.self_cpu_time_total))[:6]
    kernels = ", ".join(f"{one.key[:40]} x {one.count}" for one in by_time)
    say(case, f"profile: device busy {busy / took:.0%}, {waits / num:.1f} waits a micro-batch; most time in {kernels}",
        busy=busy / took, waits=waits / num)  # fmt: skip


def near(case: str, learner: SingleLearner, eager: SingleLearner, rows: Sequence[TrainingRow]) -> None:
    """|log pi - log mu| at equal weights; a kernel that raises the mean by over a fifth is to be off by default."""

    def values(one: SingleLearner) -> Any:
        pairs = zip(one.logprobs_of(rows), rows, strict=True)
        return np.concatenate([logprobs[row.loss_mask_T] for logprobs, row in pairs])

    mu, pi = values(eager), {"as it trains": values(learner)}
    eager._size.tokens = learner._size.tokens
    pi["eager"] = values(eager)
    for what, own in pi.items():
        gaps = np.abs(own - mu)
        say(case, f"|log pi - log mu| {what}: mean {gaps.mean():.2e}, 99.9 % {np.quantile(gaps, 0.999):.2e}, "
            f"max {gaps.max():.2e}", gap=float(gaps.mean()), what=what)  # fmt: skip


def check() -> None:
    """The plain loop does the same work: equal loss and norm, in float32."""
    rows = rows_of(*SMALL_ROWS, shape_of("small")["vocab_size"])
    result = learner_of("small", dtype="float32", compile="none").step(rows, version=0, step=1)
    model = model_of("small", torch.float32, DEVICE)
    loss, norm = plain_step(model, plain_optimiser(model), rows, max_tokens=4096)
    gap = max(abs(loss - result.loss), abs(norm - result.grad_norm) / (1 + result.grad_norm))
    is_equal = gap < (1e-3 if CUDA else 1e-5)
    say("check", f"{'OK' if is_equal else 'DIFFERS'}: loss {result.loss:.7f} and {loss:.7f}, norm "
        f"{result.grad_norm:.6f} and {norm:.6f}", failed=not is_equal)  # fmt: skip


def store() -> None:
    """A checkpoint and a version, beside what a step takes."""
    learner, folder = learner_of("0.5B"), WORK / "store"
    learner.step(rows_of(1, 2, 0, 700, 280, shape_of("0.5B")["vocab_size"]), version=0, step=1)
    handles = TrainerHandles(
        run_hash=RUN, policy="policy", model=str(WORK / "model-0.5B"), work_dir=str(folder), seed=0
    )
    progress = Progress(CheckpointState(policy="policy", run=RUN, step=1, version=1))
    publisher = Publisher(handles, keep=1, is_held=lambda _: False)
    for what, work in (
        ("checkpoints", lambda: Checkpoints(folder / "checkpoints", keep=1).save(progress, learner.tensors())),
        ("weights", lambda: publisher.write(publisher.snapshot(learner, progress, epoch=1))),
    ):
        began = wait()
        work()
        took = wait() - began
        written = sum(path.stat().st_size for path in (folder / what).rglob("*") if path.is_file())
        say("store", f"{what}: {written / 1e9:.3f} GB in {took:.2f} s", s=took, bytes=written)
    shutil.rmtree(folder)


def walked(learner: SingleLearner, steps: Sequence[int], *, restores: bool = False) -> dict[str, torch.Tensor]:
    """Its tensors after these steps, on the host; with a restore of its own tensors before each."""
    rows = rows_of(*SMALL_ROWS, shape_of("small")["vocab_size"])
    for step in steps:
        if restores:
            learner.restore({name: one.detach().cpu().clone() for name, one in learner.tensors().items()})
        learner.step(rows, version=0, step=step)
    return {name: one.detach().cpu().clone().contiguous() for name, one in learner.tensors().items()}


def bits(*, dtypes: Sequence[str] = ("float32",) if IS_TINY else ("bfloat16", "float32")) -> None:
    """Four steps, again (the control), with restores between, with a new process after two: which tensors differ."""
    for dtype in dtypes:
        made = {"lr": 1e-4, "dtype": dtype}
        whole = walked(learner_of("small", **made), range(1, 5))
        file = WORK / "half.safetensors"
        save_file(walked(learner_of("small", **made), (1, 2)), file)
        more = ["--tiny"] if IS_TINY else []
        command = [sys.executable, __file__, "--device", str(DEVICE), "--resume", str(file), dtype, *more]
        subprocess.run([*command, "--work-dir", str(WORK)], check=True, timeout=300)
        others = {
            "again": walked(learner_of("small", **made), range(1, 5)),
            "with restores": walked(learner_of("small", **made), range(1, 5), restores=True),
            "resumed by a new process": load_file(file),
        }
        for what, other in others.items():
            unequal = [name for name in whole if not torch.equal(whole[name], other[name])]
            differ = f"{len(unequal)} of {len(whole)} tensors differ: {', '.join(unequal[:8])}"
            text = f"{dtype}, {what}: {differ if unequal else 'equal bits'}"
            say("bits", text, unequal=len(unequal), what=what, dtype=dtype)


def numerics() -> None:
    """A step of the device beside one of the CPU in float32."""
    rows = rows_of(2, 2, *SMALL_ROWS[2:], shape_of("small")["vocab_size"])
    cpu = learner_of("small", torch.device("cpu"), dtype="float32").step(rows, version=0, step=1)
    for dtype in ("float32", "bfloat16"):
        own = learner_of("small", dtype=dtype).step(rows, version=0, step=1)
        say("numerics", f"{dtype} against the CPU's float32: loss {own.loss - cpu.loss:+.1e}, norm "
            f"{own.grad_norm / cpu.grad_norm - 1:+.1e} relative")  # fmt: skip


def main() -> None:
    """All cases that are asked for; the exit status."""
    if ARGS.resume:
        file, dtype = ARGS.resume
        learner = learner_of("small", lr=1e-4, dtype=dtype)
        learner.restore(load_file(file))
        save_file(walked(learner, (3, 4)), file)
        return
    device = torch.cuda.get_device_name(DEVICE) if CUDA else "cpu"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    works: dict[str, Callable[[], None]] = {"check": check}
    works |= {case: lambda case=case: step_case(case) for case in STEPS}  # type: ignore[misc]
    works |= {"store": store, "bits": bits, "numerics": numerics}
    for case in ARGS.only.split(",") if ARGS.only else works:
        if time.monotonic() - BEGAN > ARGS.budget:
            say(case, "left out: the budget is spent")
            continue
        with told(case):
            works[case]()
    if ARGS.json:
        ARGS.json.write_text(json.dumps(FOUND, indent=1))
    if ARGS.work_dir is None:
        shutil.rmtree(WORK, ignore_errors=True)
    sys.exit(any(one.get("failed") for one in FOUND))


if __name__ == "__main__":
    main()
