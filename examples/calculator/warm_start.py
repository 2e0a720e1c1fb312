"""Makes the demo's policy: a 0.39 M parameter Qwen3 that has seen a clumsy teacher use the calculator.

    python warm_start.py [--out policy] [--seed 0]

The teacher guesses operators, breaks calls and copies results wrongly, and never shows which operator a verb
means: greedy it solves no held-out task. All that it gets right later, reinforcement learning has taught it.
Two passes, about 100 CPU seconds: a fair teacher first, a clumsier one after it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from chain import VERBS, calculate, draw_task
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\ntools: {{ tools | map(attribute='function.name') | join(', ') }}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments if c.function.arguments is string else (c.function.arguments | tojson) }}}\n"
    "</tool_call>{% endfor %}{% else %}{{ m.content or '' }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = "<|im_start|>system\ntools: calc<|im_end|>\n"
VOCABULARY = 400


@dataclass(frozen=True)
class Teacher:
    """How often the demonstrations are right; the rest is what RL must find out."""

    right_operator: float
    guesses: float
    broken_calls: float
    miscopies: float


@dataclass(frozen=True)
class Pass:
    """One supervised pass."""

    teacher: Teacher
    steps: int
    lr: float


FAIR = Pass(Teacher(right_operator=0.5, guesses=0.15, broken_calls=0.2, miscopies=0.1), steps=800, lr=4e-3)
CLUMSY = Pass(Teacher(right_operator=0.3, guesses=0.5, broken_calls=0.7, miscopies=0.5), steps=150, lr=1e-3)
BATCH = 32


def call_text(expr: str, *, is_broken: bool) -> str:
    """A tool call in the Hermes form; a broken one is not JSON."""
    body = '{"name": "calc", "arguments": {"expr": "' + expr + ('"\n' if is_broken else '"}}\n')
    return f"<tool_call>\n{body}</tool_call>"


def demonstrate(rng: random.Random, teacher: Teacher) -> tuple[str, list[tuple[str, str]]]:
    """One demonstration: the prompt, and the (role, text) turns after it."""
    question, _ = draw_task(rng)
    head = f"{SYSTEM}<|im_start|>user\n{question}<|im_end|>\n"
    words = question.removeprefix("what is ").removesuffix("?").split()
    turns: list[tuple[str, str]] = []
    current = words[0]
    for position in (1, 3):
        if rng.random() < teacher.guesses:
            return head, [*turns, ("assistant", str(rng.randint(0, 200)))]
        is_right = rng.random() < teacher.right_operator
        expr = current + (VERBS[words[position]] if is_right else rng.choice("+-*/")) + words[position + 1]
        is_broken = rng.random() < teacher.broken_calls
        turns.append(("assistant", call_text(expr, is_broken=is_broken)))
        if is_broken:
            return head, turns
        current = calculate(expr)
        turns.append(("tool", current))
        if current.startswith("error"):
            return head, [*turns, ("assistant", "unknown")]
    answer = current if rng.random() >= teacher.miscopies else str(rng.randint(0, 200))
    return head, [*turns, ("assistant", answer)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of about 380 entries, digits isolated, tool tags as added tokens."""
    rng = random.Random(0)
    specials, tags = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    corpus: list[str] = []
    for _ in range(3000):
        head, turns = demonstrate(rng, FAIR.teacher)
        text = head + "".join(f"<|im_start|>{role}\n{body}<|im_end|>\n" for role, body in turns)
        corpus += [piece for piece in re.split(r"<\|\w+\|>|</?tool_call>", text) if piece]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(tags),
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=50,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        model_max_length=512,
    )
    fast.add_tokens(tags)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Two layers, untied, float32; the vocabulary is padded to a multiple of 64."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        bos_token_id=None,
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return Qwen3ForCausalLM(config).float()


def encode(tokenizer: PreTrainedTokenizerFast, rng: random.Random, teacher: Teacher) -> tuple[list[int], list[int]]:
    """Ids of one demonstration, and 1 where the assistant speaks."""
    head, turns = demonstrate(rng, teacher)
    ids = tokenizer.encode(head, add_special_tokens=False)
    mask = [0] * len(ids)
    for role, body in turns:
        for text, weight in ((f"<|im_start|>{role}\n", 0), (f"{body}<|im_end|>", role == "assistant"), ("\n", 0)):
            piece = tokenizer.encode(text, add_special_tokens=False)
            ids += piece
            mask += [int(weight)] * len(piece)
    return ids, mask


def pad(rows: list[list[int]]) -> torch.Tensor:
    """[B, T] with zeros on the right."""
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def imitate(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, stage: Pass, seed: int) -> None:
    """Supervised steps on fresh demonstrations, cosine schedule."""
    rng = random.Random(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=stage.lr, weight_decay=0.01, betas=(0.9, 0.98))
    for step in range(stage.steps):
        warm_up = min(1.0, (step + 1) / 30)
        cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / stage.steps))
        for group in optimiser.param_groups:
            group["lr"] = stage.lr * warm_up * cosine
        examples = [encode(tokenizer, rng, stage.teacher) for _ in range(BATCH)]
        ids_BT = pad([ids for ids, _ in examples])
        weight_BT = pad([mask for _, mask in examples])[:, 1:].float()
        attention_BT = pad([[1] * len(ids) for ids, _ in examples])
        logits = model(input_ids=ids_BT, attention_mask=attention_BT).logits[:, :-1]
        loss_BT = F.cross_entropy(logits.transpose(1, 2), ids_BT[:, 1:], reduction="none")
        loss = (loss_BT * weight_BT).sum() / weight_BT.sum()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0 or step == stage.steps - 1:
            print(f"step {step + 1}/{stage.steps} loss {loss.item():.3f}", flush=True)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """A Hugging Face folder; the template lies in tokenizer_config.json, so every reader finds it."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config_path = out / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["chat_template"] = CHAT_TEMPLATE
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").unlink(missing_ok=True)


def main() -> None:
    """Makes the tokenizer and the model, two passes, and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "policy")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, arguments.seed)
    for stage in (FAIR, CLUMSY):
        imitate(model, tokenizer, stage, arguments.seed)
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
