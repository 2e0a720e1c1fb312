"""What is added to the loss beside the surrogate: estimators of KL(pi || reference) at a sampled token.

In: log pi with gradient, log of the reference (or of the sampler), and rho. Out: one term a token. Written with
d = log reference - log pi, bounded by +-20 (Schulman, "Approximating KL Divergence", 2020). Suffix: N trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from .level import clamped


def k1(logprobs_N: Tensor, reference_logprobs_N: Tensor, ratios_N: Tensor) -> Tensor:
    """-d. Unbiased in value; its gradient is 0 in expectation, so it belongs into the reward."""
    return clamped(logprobs_N - reference_logprobs_N)


def k2(logprobs_N: Tensor, reference_logprobs_N: Tensor, ratios_N: Tensor) -> Tensor:
    """d^2 / 2. On policy its gradient is the reverse KL's; its value is biased."""
    return clamped(reference_logprobs_N - logprobs_N).square() / 2.0


def k3(logprobs_N: Tensor, reference_logprobs_N: Tensor, ratios_N: Tensor) -> Tensor:
    """e^d - d - 1 (GRPO, arXiv:2402.03300): unbiased and never negative; its gradient is the forward KL's."""
    difference_N = clamped(reference_logprobs_N - logprobs_N)
    return difference_N.exp() - difference_N - 1.0


def k3_plus(logprobs_N: Tensor, reference_logprobs_N: Tensor, ratios_N: Tensor) -> Tensor:
    """rho (e^d - d - 1), with the gradient of both: rho * -d, the reverse KL's, also off policy (DeepSeek-V3.2,
    arXiv:2512.02556). verl's estimator of that name has this gradient for rho = 1.
    """
    return ratios_N * k3(logprobs_N, reference_logprobs_N, ratios_N)


KLS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "k3+": k3_plus}
"""([N] log pi, [N] log reference, [N] rho of tokens) -> [N] kl."""
