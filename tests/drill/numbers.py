"""Faults of kernels in what is computed and in where it lies: a comparison sees each, or a count."""

from tests.drill.faults import Fault
from tests.drill.order import ATTENTION, BLOCKS, FLASH, GEMV, LINEAR, MMA, NORMS, PAGED, QUANTISED, kernel_fault

__all__ = ["NUMBERS"]


ARITHMETIC = (
    kernel_fault(
        "wrong scale",
        "scores are divided by H",
        "efficient/paged.py",
        "H**-0.5 if scale is None",
        "H**-1.0 if scale is None",
        PAGED,
    ),
    kernel_fault("scale lost", "the shift is not scaled", FLASH, "shift = level * scale,", "shift = level,", MMA),
    kernel_fault(
        "softcap forgotten",
        "scores are not capped",
        "llm/attention_weights.py",
        "if softcap > float32(0):",
        "if softcap > float32(1e30):",
        ATTENTION,
    ),
    kernel_fault(
        "log-sum-exp to base 2", "a logarithm is not natural", FLASH, "LN2 = 0.693147181f", "LN2 = 1.0f", MMA
    ),
    kernel_fault(
        "weights not rescaled", "a new maximum leaves the sum as it was", FLASH, "    sum *= shrink;\n", "", MMA
    ),
    kernel_fault(
        "hidden by zero",
        "what is hidden is multiplied",
        "llm/attention_tiles.py",
        "            if weight != hidden:\n",
        "            if weight == weight:\n",
        "test_attention.py::test_poison_in_hidden_slots_changes_nothing",
    ),
    kernel_fault(
        "eps outside",
        "eps is added to the root",
        "basics/norm_kernels.py",
        "block_sum(total) / float32(x.shape[1]) + eps)\n",
        "block_sum(total) / float32(x.shape[1])) + eps\n",
        NORMS,
    ),
    kernel_fault(
        "centred once",
        "the rounding of a mean stays",
        "basics/norm_kernels.py",
        "rest = block_sum(total) / width",
        "rest = float32(0)",
        NORMS,
    ),
    kernel_fault(
        "bias forgotten",
        "no bias is added",
        "basics/linear_kernels.py",
        "                total += wide_b(b[o])\n",
        "                total += float32(0)\n",
        LINEAR,
    ),
    kernel_fault(
        "sign of the rotation",
        "pairs turn the other way",
        "llm/position_kernels.py",
        "narrow(b * cos[i] + a * sin[i])",
        "narrow(b * cos[i] - a * sin[i])",
        "test_llm.py::test_rope",
    ),
    Fault(
        "rounding to zero",
        "16-bit numbers are cut off",
        "gpu/number.py",
        'f"cvt.rn.{short}.f32',
        'f"cvt.rz.{short}.f32',
        ("tests/compile/test_number.py",),
    ),
    kernel_fault(
        "float64 leak",
        "a kernel of float32 computes in float64",
        "basics/activation_kernels.py",
        "one, half, cubic, quick = np.float32([1, 0.5, 0.044715, 1.702])",
        "one, half, cubic, quick = 1.0, 0.5, 0.044715, 1.702",
        "test_float32.py",
    ),
    kernel_fault(
        "half a sum",
        "a butterfly lacks its first step",
        GEMV,
        "for (int step = 16; step;",
        "for (int step = 8; step;",
        LINEAR,
    ),
    kernel_fault(
        "ties kept",
        "all tokens equal to the last are kept",
        "llm/row_kernels.py",
        "(own == place and i <= last)",
        "own == place",
        "test_sampler.py::test_top_k",
    ),
)

LAYOUT = (
    kernel_fault(
        "swizzle removed",
        "eight rows meet one bank",
        FLASH,
        "16 * (word ^ row % 8)",
        "16 * word",
        "test_flash_mma.py::test_no_bank_conflict_and_whole_sectors",
    ),
    kernel_fault(
        "swizzle on one side",
        "words are read where they were not written",
        FLASH,
        "copy_async(shared + place(row, word) +",
        "copy_async(shared + row * ROW_BYTES + 16 * word +",
        MMA,
    ),
    kernel_fault(
        "heads tiled",
        "query head n reads key head n mod K",
        FLASH,
        "head / (num_heads / num_kv_heads)",
        "head % num_kv_heads",
        MMA,
    ),
    kernel_fault(
        "stride swapped",
        "keys are read at the stride of queries",
        FLASH,
        "stride = num_heads * HEAD_DIM, kv_stride = num_kv_heads * HEAD_DIM",
        "stride = num_kv_heads * HEAD_DIM, kv_stride = num_heads * HEAD_DIM",
        MMA,
    ),
    kernel_fault(
        "pairs swapped",
        "rotation always pairs neighbours",
        "llm/position_kernels.py",
        "if interleaved else (i, i + J)",
        "if J else (i, i + J)",
        "test_llm.py::test_rope",
    ),
    kernel_fault(
        "block table strides",
        "a block's slots lie one apart",
        "llm/attention_tiles.py",
        "table[s // block_size] * block_size + s",
        "table[s // block_size] + s",
        PAGED,
    ),
    kernel_fault(
        "nibbles swapped",
        "high halves come first",
        BLOCKS,
        "i < 4 ? codes << 3 : codes >> 1",
        "i < 4 ? codes >> 1 : codes << 3",
        QUANTISED,
    ),
    kernel_fault(
        "scale without one",
        "what a denoiser is told multiplies its norm by scale, not 1 + scale",
        "media/denoiser_kernels.py",
        "(float32(1) + wide_scale(scale[own, d]))",
        "wide_scale(scale[own, d])",
        "test_denoiser_layers.py::test_adaln",
    ),
    kernel_fault(
        "patch on its side",
        "rows of a patch are read as its columns",
        "media/denoiser_kernels.py",
        "row * tall + inner // broad % tall",
        "row * tall + inner % tall",
        "test_denoiser_layers.py::test_patchify",
    ),
    kernel_fault(
        "codes off by one", "q8_0 counts from another zero", BLOCKS, "- 8388736.0f;", "- 8388735.0f;", QUANTISED
    ),
)

NUMBERS = (*ARITHMETIC, *LAYOUT)
