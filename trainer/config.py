"""What the trainer is told: `[trainer]` and `[algorithm]` of the settings file, and the handles of the run.

In: compose hands them over. Out: frozen records. Invariant: bounds stand in the types, so what cannot work fails
at load. Imports nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.section import Count, Device, Folder, NameOrFunction, Program, Section, Whole, module_of, nearest

from .algorithm.recipe import Recipe, without_functions
from .algorithm.recipes import DEFAULT, RECIPES
from .history.config import History

NOT_LEARNT = frozenset({"python", "threads", "keep_versions", "keep_checkpoints", "checkpoint_every", "steps"})
"""Keys of `[trainer]` that change no step; `steps` does where the learning rate goes by it. Of `[algorithm]` there is
none."""


class TrainerConfig(Section, frozen=True, kw_only=True):
    """`[trainer]`: how the policy learns (docs/training.md has the formulas)."""

    steps: Count = 80
    """Batches until the run is done."""
    groups_per_step: Count = 8
    """G, the training groups of one batch."""
    lr: Annotated[float, Meta(ge=0)] = 1e-5
    """AdamW's learning rate after the warm-up."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up, over what is left of `steps`: it stays, falls to 0 in a line, or along half a cosine."""
    warmup_steps: Whole = 3
    """Linear warm-up: an optimiser's u-th update uses lr * min(1, u / warmup_steps); a rollback begins a new one."""
    clip_norm: Annotated[float, Meta(gt=0)] = 1.0
    """Gradient norm clip."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """AdamW's."""
    adam_beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """AdamW's, of the mean of gradients."""
    adam_beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.95
    """AdamW's, of the mean of their squares; shorter than torch's .999, for gradients change with the policy."""
    adam_eps: Annotated[float, Meta(gt=0)] = 1e-8
    """AdamW's."""
    critic: Folder | None = None
    """The critic of a recipe with `baseline = "critic"`: a model of its own, whose folder this is, trained as the
    policy is, in full or by adapters; None: a value head on the policy's hidden states."""
    critic_lr: Annotated[float, Meta(ge=0)] | None = None
    """The critic's learning rate, with the policy's warm-up and schedule; None: 1e-3 of a head, 1e-5 of a model."""
    lora_rank: Count | None = None
    """Rank of a low-rank adapter; None: every weight is trained. Not for mixtures of experts."""
    lora_alpha: Count = 32
    """Scale of the adapter."""
    max_staleness: Whole = 8
    """Versions that a trained token may be behind; beyond it the group is excluded as `stale`. A safety net, for
    `[pace]` bounds admission."""
    device: Device = "auto"
    """`cpu`, `cuda`, `cuda:N`, the N-th visible GPU from 0, or `auto`: the first GPU when there is one, else `cpu`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the model's weights; `auto`: float32 on CPU, bfloat16 on an accelerator. What is optimised is float32.
    bfloat16 is for accelerators and CPUs with its instructions: it halves the weights."""
    publish_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the published files; `auto`: `dtype`, whatever the model came in."""
    deterministic: bool | None = None
    """Only kernels that repeat to the bit, on a GPU without cuDNN's attention; what has no such kernel ends the run.
    None: on a CPU, not on a GPU."""
    threads: Count = 1
    """CPU threads; two intra-op threads on a busy two-core machine are 15 to 30 times slower than one."""
    micro_batch_tokens: Whole = 0
    """Padded tokens of a forward pass, which bounds memory; a longer row goes alone. 0: 1,024 on a CPU (measured the
    fastest for small models), 16,384 on an accelerator. Halved each time that a GPU runs out of memory."""
    packing: Literal["rows", "tree"] = "rows"
    """`tree`: what rows of a micro-batch begin with alike, as a group's do with their prompt, is computed once, and
    `micro_batch_tokens` bounds what is left. Pays where prompts are long beside answers. For models whose layers all
    attend to all that came before; results are those of `rows` but for rounding."""
    micro_batch_logits: Count = 1 << 28
    """Logits (tokens x vocabulary) that exist at once: beyond, the head is computed in pieces, each again in the
    backward pass. Of the default a copy takes 1 GiB in float32, and the backward pass has about four."""
    recompute: Literal["auto", "none", "layers"] = "auto"
    """`layers`: the backward pass computes each layer again and so keeps its input alone, for about a third more time;
    `auto`: once a single row runs out of memory, which ends a run with `none`."""
    compile: Literal["auto", "none"] = "auto"
    """`auto`: on a GPU torch compiles a decoder layer, for every length at once; where it cannot, a line in the log
    says why, and nothing is compiled. The compiled code lies in the run's folder, so that a restart finds it."""
    max_row_tokens: Count = 32768
    """A longer row makes its group malformed (`too_long`)."""
    keep_versions: Whole = 20
    """Newest version folders kept; 0 keeps all. Version 0 and the best one (`[tasks] eval_every`) always are. A
    rollback can reach these only."""
    keep_checkpoints: Count = 2
    """Newest checkpoints kept: where the newest cannot be read, an older one is resumed and the log replayed."""
    checkpoint_every: Count = 1
    """Steps from one checkpoint to the next; what a kill undoes is replayed from the log. A stop always leaves one."""
    python: Program | None = None
    """The interpreter that has `tracegrad[trainer]`; None: the one that runs tracegrad."""


class PublishConfig(Section, frozen=True, kw_only=True):
    """`[publish]`: which weights become a version."""

    every: Count = 1
    """Updates from one version to the next; the run's last batch leads to one in any case. With more, engines load less
    often and a wait for feedback is fewer versions long; what is sampled is of weights up to so many updates older."""


_CAPTURED_WINDOW = 500


class AlarmsConfig(Section, frozen=True, kw_only=True):
    """`[alarms]`: what is done about a run that goes wrong (docs/watching.md lists the signs)."""

    on: Literal["warn", "pause", "stop"] | None = None
    """At the first step at which an alarm holds: a line in the log and on the terminal; besides, `pause`: nothing more
    is trained while all else serves, until the run is stopped and started again; or `stop`: the run ends with status 1.
    The step is kept, and the same command goes on after it. But for `warn`, a cause that no training can mend, such as
    a grader that always raises, ends the run with status 78 (docs/watching.md). Not set: else as `warn`."""
    rollback_window: Whole | None = None
    """Scored conversations, at least, of the newest versions, and of those before them: where the newest are worse
    beyond chance, the trainer rolls back to the last version before. 0: never; None: 500 where the run trains on
    captured traffic (`[select] train`), else never."""

    def window(self, *, is_captured: bool) -> int:
        """`rollback_window`, decided. Scores of a group's rollouts are those of one task: no independent ratings."""
        return (_CAPTURED_WINDOW if is_captured else 0) if self.rollback_window is None else self.rollback_window


_Keys: Any = msgspec.defstruct(
    "_Keys",
    [("recipe", NameOrFunction, DEFAULT)]
    + [
        (name, without_functions(hint) | None, None)  # None: it says nothing
        for name, hint in typing.get_type_hints(Recipe, include_extras=True).items()
    ],
    bases=(Section,),
    module=__name__,
    frozen=True,
    kw_only=True,
)


_OF_PEERS = ("none", "mean", "leave_one_out", "length_weighted")
_OBEYED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "bound": ("outcome", ("return", "one")),
    "decay": ("baseline", (*_OF_PEERS, "critic")),
    **dict.fromkeys(("gae", "gamma", "lam", "value_clip"), ("baseline", (*_OF_PEERS, "running_mean"))),
    "low": ("surrogate", ("reinforce",)),
    "high": ("surrogate", ("reinforce",)),
    "dual": ("surrogate", ("reinforce", "cispo", "sapo", "dppo")),
    "correction_low": ("correction", ("none", "tis", "tis_row", "opsm")),
    "correction_high": ("correction", ("none",)),
    "length": ("aggregation", ("token_mean", "rollout_mean", "group_mean")),
    "kl": ("beta", (0.0,)),
    "kl_to": ("beta", (0.0,)),
    "kl_in": ("beta", (0.0,)),
    "reference_every": ("kl_to", ("reference", "sampler")),
    "reference_share": ("kl_to", ("reference", "sampler")),
    "share": ("selection", ("none", "spread")),
    "overlong_buffer": ("overlong", (0,)),
}
"""Keys that some values of another do not look at: to set them beside one is a mistake, and would go unnoticed."""


class AlgorithmConfig(_Keys, frozen=True, kw_only=True):  # type: ignore[misc, call-arg]
    """`[algorithm]`: what is learnt from a return (docs/training.md has the formulas). A recipe by name; each other key
    overrides what the recipe says, and says nothing where it is left out.
    """

    recipe: NameOrFunction = DEFAULT
    """A name of docs/algorithms.md, or `file.py:name`, a Recipe of your own; its axes may be functions
    there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" not in self.recipe:  # a user's file is code: it is run where it trains
            self.resolve()

    def resolve(self) -> Recipe:
        """The recipe with what overrides it.

        Raises:
            ConfigurationError: there is none of that name, or the keys do not go together.
        """
        if ":" in self.recipe:
            recipe = _own_recipe(*self.recipe.rsplit(":", 1))
        elif self.recipe in RECIPES:
            recipe = RECIPES[self.recipe].recipe
        else:
            raise ConfigurationError(f"recipe: no recipe {self.recipe!r}; {nearest(self.recipe, RECIPES)}")
        given = {name: value for name in Recipe.kinds() if (value := getattr(self, name)) is not None}
        recipe = msgspec.structs.replace(recipe, **given)
        for key in given.keys() & _OBEYED:
            axis, values = _OBEYED[key]
            if (value := getattr(recipe, axis)) in values:
                raise ConfigurationError(f"{key}: expected {axis} to be another than {value!r}, which does not read it")
        return recipe

    @classmethod
    def docs(cls) -> dict[str, str]:
        """Of the recipe's fields too."""
        own: dict[str, str] = super().docs()
        return Recipe.docs() | own


def _own_recipe(file: str, name: str) -> Recipe:
    """The Recipe of that name in a user's file, which is run; modules beside it can be imported."""
    module = module_of(file, "recipe")
    recipe = getattr(module, name, None)
    if not isinstance(recipe, Recipe):
        there = [key for key, value in vars(module).items() if isinstance(value, Recipe)]
        hint = f"; {nearest(name, there)}" if there else ""
        raise ConfigurationError(f"recipe: expected a Recipe named {name!r} in {file}, got {recipe!r}{hint}")
    return recipe


class Waits(NamedTuple):
    """How long a trainer waits, and how often it looks; tests wait shorter."""

    poll_s: float = 0.25
    """Longest wait for records before the stop event and the epoch are looked at again."""
    log_s: float = 30.0
    """A waiting trainer says so, with its lag, this often."""
    taken_s: float = 2.0
    """A trainer that waits looks this often whether all that lies there is read, and tells tasks."""


WAITS = Waits()


class TrainerHandles(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of one run; its weights lie under `work_dir`."""

    run_hash: RunHash
    policy: str
    model: str
    """Folder of the base model (config, tokenizer, safetensors); version 0."""
    work_dir: str
    """Holds `checkpoints/`, `weights/` (the root that engines may load from) and `adapters/`."""
    seed: int
    chat_template: str | None = None
    """A file whose template each version's folder has instead of the base model's."""
    history: History | None = None
    """What lies there to be trained on, where the run replays another one; None: `transitions` grow, and are waited
    for."""
    publish: PublishConfig = PublishConfig()
    engine_share: float = 0.0
    """Of the memory of the trainer's GPU, that an engine on it takes; 0: none is there."""
    trains_captured: bool = False
    """On traffic of agents that others run, from what people say of it."""
    is_synchronous: bool = False
    """No batch is admitted before the one before it is trained ([pace] staleness = 0)."""
