"""Faults of the chapter's operations: each a way to be wrong that no other fault has."""

from tests.drill.faults import Fault
from tests.drill.order import kernel_fault

__all__ = ["CHAPTER"]

CHAPTER: tuple[Fault, ...] = (
    # Convolutions.
    kernel_fault(
        "state forgotten",
        "every chunk of a convolution begins with zeros",
        "basics/conv_kernels.py",
        "                    elif at < uint64(state.shape[0]):\n                        value",
        "                    elif at < uint64(0):\n                        value",
        "test_conv.py::test_conv1d",
    ),
    kernel_fault(
        "painted off the stride",
        "a transposed convolution paints every row",
        "basics/conv_kernels.py",
        "if at_y % stride_y == uint64(0) and at_y",
        "if at_y",
        "test_conv.py::test_conv_transpose2d",
    ),
    # Positions and caches.
    kernel_fault(
        "ring not turned",
        "a ring is read from its first slot",
        "llm/cache_kernels.py",
        "slot = (uint64(start) + s) % uint64(k_cache.shape[0])",
        "slot = s % uint64(k_cache.shape[0])",
        "test_cache_forms.py::test_ring_read",
    ),
    kernel_fault(
        "largest of the first lanes",
        "a largest number past the first 32 of a head is not seen",
        "llm/cache_kernels.py",
        "largest = max(largest, size_of(wide(x[t, k, h])))",
        "largest = max(largest, size_of(wide(x[t, k, lane()])))",
        "test_cache_forms.py::test_quantized_append",
    ),
    Fault(
        "shared block written",
        "a block of two sequences is not copied before it is written",
        "refimpl/efficient/prefix_sharing.py",
        "if allocator.holders[blocks[m]] > 1]",
        "if allocator.holders[blocks[m]] > 2]",
        ("tests/laws/test_prefix_sharing.py::test_who_writes_never_changes_a_sibling_and_no_block_is_lost",),
    ),
    # Norms and the training cycle.
    kernel_fault(
        "gate before the norm",
        "a gated norm ignores the order that is asked for",
        "basics/norm_kernels.py",
        "value = wide(x[row, d]) if norm_first else wide(x[row, d]) * formula(wide_gate(gate[row, d]))",
        "value = wide(x[row, d]) * formula(wide_gate(gate[row, d]))",
        "test_gated_norms.py::test_gated_rms_norm",
    ),
    Fault(
        "scale of the loss",
        "the gradient of a mean is that of a sum",
        "refimpl/basics/training.py",
        "scale * gradient, 0)",
        "gradient, 0)",
        ("tests/laws/test_training.py::test_a_training_step_goes_along_the_gradient_of_the_mean_loss",),
    ),
    # Mixtures of experts.
    kernel_fault(
        "closed groups at 0",
        "experts outside the best groups stand above a negative score",
        "llm/router_kernels.py",
        "                score = float32(-math.inf)\n",
        "                score = float32(0)\n",
        "test_router.py::test_sigmoid_group_top_k",
    ),
    kernel_fault(
        "rows not put back",
        "what experts give is summed in the order of experts",
        "llm/moe_kernels.py",
        "number = rows[uint64(places[c]) if places.size else c, i % D]",
        "number = rows[c, i % D]",
        "test_moe.py::test_mixtures",
    ),
    kernel_fault(
        "groups that meet",
        "the last expert of a tile computes all of it",
        "llm/expert_kernels.py",
        "if uint64(offsets[e]) <= t < uint64(",
        "if t < uint64(",
        "test_moe.py::test_grouped_linear",
    ),
    # Bottlenecks.
    Fault(
        "all experts active",
        "a token is taken to meet every expert",
        "refimpl/bottleneck/serving.py",
        ".num_active // moe.num_experts for",
        ".num_experts // moe.num_experts for",
        ("tests/laws/test_serving.py::test_parameters_are_those_published",),
    ),
    Fault(
        "cost of another network",
        "a gated network is counted without its gate",
        "refimpl/bottleneck/cost.py",
        '("gated_mlp", "6 T D F"',
        '("gated_mlp", "4 T D F"',
        ("tests/laws/test_cost.py::test_flop_are_those_of_the_docstring",),
    ),
    # Attention.
    kernel_fault(
        "gap seen",
        "a query sees what lies between the prefix and its window",
        "llm/attention_weights.py",
        "row[2] <= s < row[3] and not row[4] <= s < row[5] else never",
        "row[2] <= s < row[3] else never",
        "test_attention.py::test_attention_with_a_prefix",
    ),
    kernel_fault(
        "parts of the gap joined",
        "splits in which a row sees nothing are read",
        "efficient/paged_kernels.py",
        "skipped = max(again // split, none) - none",
        "skipped = uint64(0)",
        "test_paged.py::test_paged_attention",
    ),
    kernel_fault(
        "sink unshifted",
        "a sink is not shifted by the maximum of its row",
        "llm/flash_mma.cu",
        "exp2(sink - highest[r][half] * scale)",
        "exp2(sink)",
        "test_attention.py::test_attention_on_tensor_cores",
    ),
    # Quantised weights.
    kernel_fault(
        "line not clipped",
        "a minimum above 0 is kept, which no format holds",
        "llm/writer_lines.py",
        "        if m > float32(0):\n",
        "        if m > float32(1e30):\n",
        "test_writers.py::test_quantize",
    ),
    kernel_fault(
        "scale of another block",
        "a partly full block has the scale of the one before it",
        "llm/narrow_kernels.py",
        "at += i % length // uint64(axes[axis, 1])",
        "at += i % length // uint64(axes[axis, 1] + 1)",
        "test_narrow_floats.py::test_quantize_linear",
    ),
    # Samplers.
    kernel_fault(
        "typical without size",
        "what is too likely counts as nearer to the entropy than what is too unlikely",
        "llm/tail_order_kernels.py",
        "abs(below(number, values[1]) - values[2])",
        "values[2] - below(number, values[1]) + float64(1e3)",
        "test_tail_cuts.py::test_cuts_of_a_share",
    ),
    kernel_fault(
        "start of a sequence ignored",
        "a repeated sequence is known by its last token alone",
        "llm/ban_kernels.py",
        "        return j == n\n",
        "        return j > uint64(0)\n",
        "test_bans.py::test_no_repeat_ngram",
    ),
    Fault(
        "noise of a neighbour",
        "every row of a batch races with the noise of the first",
        "gpu/llm/sampler.py",
        "~uint64(0)), row, noise[block()])",
        "~uint64(0)), row, noise[0])",
        ("tests/laws/test_draws.py::test_a_draw_never_depends_on_its_neighbours",),
    ),
    Fault(
        "token of probability 0",
        "a race is run by tokens that cannot come",
        "refimpl/llm/sampler.py",
        "runners = np.flatnonzero(wide)",
        "runners = np.arange(len(wide))",
        ("tests/laws/test_draws.py::test_race_never_draws_a_probability_of_zero",),
    ),
    # Speculative decoding.
    kernel_fault(
        "kept at the bound",
        "a drafted token stays where its noise meets the ratio, at probability 0 too",
        "llm/speculative.py",
        "noise[row, j] * q >= p",
        "noise[row, j] * q > p",
        "test_speculative.py::test_accepted_length",
    ),
    Fault(
        "rejected tokens kept",
        "the cache keeps the keys of one token too many of a draft",
        "gpu/model.py",
        "len(reply.prompt) + len(reply.output) - 1)\n",
        "len(reply.prompt) + len(reply.output) - (1 - (len(guess) > 0)))\n",
        ("tests/executor/test_speculation.py::test_text_is_the_same_with_any_draft[llama-greedy]",),
    ),
)
