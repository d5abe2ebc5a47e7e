"""Where implementations disagree, what is chosen here, and who follows which.

Rows keep their numbers; a row appears when an operation that it concerns does. Each choice is ours (the default, or a
keyword or a chain away) or is not offered; the cases that pin ours also reject the others, planted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from golden.case import Case

__all__ = ["ROWS", "Choice", "Row", "markdown"]


@dataclass(frozen=True)
class Choice:
    name: str
    followers: str
    here: str  # "default", how to ask for it, or "no"


@dataclass(frozen=True)
class Row:
    number: int
    question: str
    choices: tuple[Choice, ...]


def _row(number: int, question: str, *choices: tuple[str, str, str]) -> Row:
    return Row(number, question, tuple(Choice(*choice) for choice in choices))


ROWS = (
    _row(
        1, "Which tokens does top-p keep at the boundary?",
        ("smallest set", "Hugging Face, vLLM, llama.cpp, mlx-lm: the token that crosses p stays", "default"),
        ("mass ranked above <= p", "Meta, Mistral, SGLang (torch)", "no"),
    ),
    _row(
        2, "In which order do the samplers act?",
        ("temperature first (HF)", "Hugging Face: penalties, T, top-k, top-p, min-p", "default"),
        ("temperature last, as a chain", "llama.cpp", "a chain is data: any order"),
        ("top-k, then top-p of what is left", "Hugging Face, vLLM", "default"),
        ("top-p, then top-k, as a chain", "llama.cpp where asked for", "a chain is data: any order"),
    ),
    _row(
        3, "What is temperature 0?",
        ("argmax", "Hugging Face, vLLM below 1e-5, llama.cpp; no division, and a tiny T does not overflow", "default"),
        ("a refusal, or a division by zero", "some engines", "no"),
    ),
    _row(
        4, "Where does the causal mask start when T is not S?",
        ("bottom-right", "flash-attention from 2.1, FlashInfer, MLX, ONNX with a cache: s <= t + S - T", "default"),
        ("top-left", "PyTorch is_causal", "a mask"),
    ),
    _row(
        5, "What does a query get that sees no key?",
        ("zero", "PyTorch SDPA, flash-attention, ONNX, MLX; its log-sum-exp is -inf", "default"),
        ("NaN", "the plain softmax of -inf", "no"),
        ("mean of v", "a finite sentinel such as -1e30", "no"),
    ),
    _row(
        6, "To which base is the log-sum-exp, and does it count a sink?",
        ("natural", "flash-attention", "default"),
        ("base 2", "FlashInfer: lse / log(2)", "no"),
        ("sink not included", "what merges parts: a sink counts once, at the end", "default"),
        ("sink included", "gpt-oss's softmax, whose denominator holds the sink", "merge_states(o, lse, 0, sinks)"),
    ),
    _row(
        7, "Which GELU?",
        ("erf", "BERT, torch's default", "gelu_erf"),
        ("tanh", "GPT-2, Gemma, T5 v1.1", "gelu_tanh"),
        ("sigmoid(1.702 x)", "CLIP, gpt-oss", "gelu_quick"),
    ),
    _row(
        8, "How does RMSNorm round, and where do gain and eps act?",
        ("float32 inside", "gpt-oss, FlashInfer: one cast, at the end. Hugging Face casts before the gain", "default"),
        ("gain_offset=1", "Gemma, Qwen3-Next: times 1 + gain", "keyword gain_offset"),
        ("eps inside the root", "all of these", "default"),
    ),
    _row(
        9, "Does a gated norm gate before the norm or after it?",
        ("gate after the norm", "Qwen3-Next: silu", "default"),
        ("gate before the norm", "Mamba-2: silu", "norm_before_gate=False"),
        ("sigmoid after the norm", "Kimi Linear", 'activation="sigmoid"'),
    ),
    _row(
        10, "Which values does RoPE pair?",
        ("halves", "Hugging Face, flash-attention, gpt-oss: i with i + J", "default"),
        ("interleaved", "Meta, DeepSeek MLA, llama files in GGUF: 2i with 2i + 1", "interleaved=True"),
        ("tables in float32 or wider", "bfloat16 rounds position 15962 to 15936", "default"),
    ),
    _row(
        11, "What do partial and scaled RoPE change?",
        ("leading dimensions", "Phi, Qwen3-Next; DeepSeek-V4 turns the trailing ones", "default"),
        ("trailing dimensions", "DeepSeek-V4", "trailing=True"),
        ("linear", "as the checkpoint's config says", 'scaling="linear"'),
        ("dynamic", "each call stands alone", 'scaling="dynamic"'),
        ("YaRN", "a given attention_factor is final; it acts on cosine and sine", 'scaling="yarn"'),
        ("llama3", "as the checkpoint's config says", 'scaling="llama3"'),
        ("longrope", "as the checkpoint's config says", 'scaling="longrope"'),
        ("mRoPE, sections one after the other", "Qwen2-VL, Qwen2.5-VL", "mrope_table"),
        ("mRoPE, interleaved", "Qwen3-VL", "mrope_table(interleaved=True)"),
    ),
    _row(
        12, "How many keys does a window of W hold?",
        ("W keys, self included", "Hugging Face, gpt-oss, vLLM, llama.cpp", "default"),
        ("W keys to the left, and self", "flash-attention, FlashInfer, ONNX", "window=W + 1"),
        ("chunks of W", "Llama 4: a query sees the keys of its own chunk of W positions", "chunk=W"),
        ("W keys, and the first of the sequence", "StreamingLLM; here keys keep their positions", "prefix=..."),
    ),
    _row(
        13, "Does the soft cap act before or after the mask?",
        ("before the mask", "flash-attention, ONNX", "default"),
        ("after the mask", "a fault: hidden keys leak, visibly at cap 1, hardly at cap 50", "no"),
    ),
    _row(
        14, "Which key head does query head n read?",
        ("n // G", "Hugging Face, flash-attention: repeat", "default"),
        ("n % K", "tile", "no"),
    ),
    _row(
        15, "By what are attention scores scaled?",
        ("1/sqrt(head_dim)", "most models; the width of q and k, not of v", "default"),
        ("keyword", "none in T5, query_pre_attn_scalar in Gemma", "scale=..."),
    ),
    _row(
        16, "How does a router choose its experts, and weigh them?",
        ("softmax, top-k, divided by their sum", "Mixtral, Qwen3-MoE with norm_topk_prob", "softmax_top_k"),
        ("softmax, top-k, as they are", "Qwen2-MoE", "softmax_top_k(renormalise=False)"),
        ("top-k, softmax of these", "gpt-oss", "top_k_softmax"),
        ("sigmoid, best groups, a bias for the choice alone", "DeepSeek-V3", "sigmoid_group_top_k"),
        ("root of softplus, a bias for the choice alone", "DeepSeek-V4", "sqrt_softplus_top_k"),
        ("by the token's id", "DeepSeek-V4 in its first layers", "hash_route"),
        ("sigmoid of the largest", "Llama 4, where it multiplies the expert's input", "top_k_sigmoid"),
        ("closed groups at 0, score minus bias", "faults: a negative bias opens them, a large one takes digits", "no"),
    ),
    _row(
        17, "How many tokens does top-k keep when values tie?",
        ("exactly k, lower index first", "llama.cpp, ONNX", "default"),
        ("all that reach the k-th value", "Hugging Face, vLLM", 'ties="all"'),
    ),
    _row(
        18, "How is a token drawn?",
        ("inverse CDF, noise as argument", "llama.cpp; u = 0 never picks a probability of 0", "default"),
        ("Philox 4x32-10", "keyed by (seed, request, position), so no draw depends on its neighbours", "uniform"),
        ("exponential race", "vLLM, gpt-fast: the same law, other tokens", "draw_race, exponential"),
    ),
    _row(
        19, "What do penalties do?",
        ("as HF", "repetition: divide positive logits, multiply negative ones, over prompt and output", "default"),
        ("presence and frequency as OpenAI", "subtract, over the output", "default"),
    ),
    _row(
        21, "How does a timestep become sines and cosines?",
        ("sines, then cosines", "DDPM, diffusers' default", "default"),
        ("cosines, then sines", "DiT, Stable Diffusion, Flux", "flip_sin_to_cos=True"),
        ("denominators of dim / 2 - 1", "DDPM, diffusers' default, its DiT", "default"),
        ("denominators of dim / 2", "Stable Diffusion, Flux, DiT's own code", "downscale_freq_shift=0"),
        ("t in 0..1000", "DDPM, Stable Diffusion, DiT", "default"),
        ("t in 0..1", "flow matching, whose networks scale it themselves", "scale=1000"),
    ),
    _row(
        22, "What does a guidance scale multiply?",
        ("e_u + s (e_c - e_u)", "Imagen, diffusers, DiT: off is s = 1, which skips the second pass", "default"),
        ("e_c + w (e_c - e_u)", "Ho, Salimans, 2022: w = s - 1, off is w = 0", "guidance_scale=w + 1"),
    ),
    _row(
        23, "At which timesteps does a solver stop, and where does a step end?",
        ("leading", "DDPM, DDIM, Stable Diffusion: 10 of 1000 begin at 900 (+ offset)", 'timesteps("leading", ...)'),
        ("linspace", "k-diffusion, DPM-Solver: both ends, 999 and 0", 'timesteps("linspace", ...)'),
        ("trailing", "Lin et al., 2023: 10 of 1000 begin at 999 and end at 99", 'timesteps("trailing", ...)'),
        ("at the next stop", "what a schedule says", "default"),
        ("floor(T / n) below", "DDIM, PNDM in diffusers: wrong for linspace; for trailing, if n does not divide T",
         "by_subtraction=True, like_diffusers=True"),
    ),
    _row(
        24, "How often is a flow shifted?",
        ("once", "Stable Diffusion 3's paper, Flux: shift 3, n = 28 ends at 0.00299", "default"),
        ("twice", "FlowMatchEulerDiscreteScheduler without sigmas: 0.00893", "double_shift=True, like_diffusers=True"),
    ),
    _row(
        25, "What does a denoiser say?",
        ("epsilon: the noise", "DDPM, Stable Diffusion: x0 = (x - sigma e) / alpha, where alpha > 0", "default"),
        ("v: alpha noise - sigma x0", "Salimans, Ho, 2022; Stable Diffusion 2: over the root of alpha^2 + sigma^2",
         '"v_prediction"'),
        ("sample: the picture", "DALL-E 2's prior, LCM's target", '"sample"'),
        ("flow: noise - x0", "Stable Diffusion 3, Flux: x0 = x - sigma v where alpha = 1 - sigma", '"flow_prediction"'),
        ("edm: -v", "EDM's F, of data with a spread that alpha holds", '"edm"'),
    ),
    _row(
        27, "What may stand in a slot of the cache that no query sees?",
        ("anything, NaN included", "paged engines: a slot is not cleaned before it is used again", "default"),
        ("a finite number", "PyTorch SDPA with a mask: what is hidden is multiplied by 0, and NaN stays", "no"),
    ),
    _row(
        31, "How often does layer norm take the mean away?",
        ("twice", "the rounding of a large mean, which the first time leaves behind, goes with the second", "default"),
        ("once", "PyTorch and most kernels: float32 values near 4096 lose some 11 bits", "no"),
    ),
    _row(
        32, "Where does the eps of an L2 norm stand?",
        ("under the root", "flash-linear-attention, Qwen3-Next, Kimi Linear: x / sqrt(sum + eps)", "default"),
        ("a floor of the length", "torch.nn.functional.normalize: x / max(length, eps)", "eps_is_floor=True"),
    ),
    _row(
        33, "How do the sines and cosines of a position lie, and how slow is the slowest?",
        ("interleaved", "Vaswani 2017, XLM, DistilBERT: sine and cosine in turn, theta^(-2i / D)", "default"),
        ("halves", "Marian, CTRL: all sines, then all cosines", "interleaved=False"),
        ("halves, denominators of D / 2 - 1", "tensor2tensor, fairseq, Whisper", "interleaved=False, freq_shift=1"),
    ),
    _row(
        34, "How small does a sigmoid become?",
        ("as small as its dtype holds", "PyTorch, CUDA: exp in both tails; the relative accuracy stays", "default"),
        ("0 from -18 on", "ONNX Runtime on the CPU: a ratio of polynomials, right to half a last place of 1", "no"),
    ),
)  # fmt: skip


def markdown(cases: Iterable[Case]) -> str:
    """Return the page of conventions, each choice with the cases that pin it."""
    pinned: dict[tuple[int | None, str | None], list[str]] = {}
    for case in cases:
        pinned.setdefault((case.row, case.choice), []).append(f"`{case.id}`")
    lines = [
        "# Where implementations disagree, and what is chosen here", "",
        "Generated by `make docs` from golden/conventions.py. Every case also rejects another choice, planted.",
        "Rows keep their numbers: those that are missing here come with the operations they concern.",
    ]  # fmt: skip
    for row in ROWS:
        lines += ["", f"## {row.number}. {row.question}", "", "| choice | who | here | cases |", "|---|---|---|---|"]
        for choice in row.choices:
            ids = ", ".join(pinned.get((row.number, choice.name), [])) or "rejected, planted"
            lines.append(f"| {choice.name} | {choice.followers} | {choice.here} | {ids} |")
    return "\n".join(lines) + "\n"
