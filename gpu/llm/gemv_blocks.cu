// y = x w^T + b + residual for few rows of x, w being rows of quantised blocks as their file holds them: q8_0, q4_1
// or mxfp4.
//
// A block has 34, 20 or 17 bytes, so its codes lie at no 16-byte boundary. A warp therefore copies ROWS neighbouring rows
// by aligned 16-byte words into shared memory (cp.async, CHUNK blocks of each row while it uses those before), and its
// lanes pick their bytes there. Memory sees whole sectors, one after the other, and the weights need no second layout.
//
// Four lanes take a block, each 8 of its columns: 4 p .. 4 p + 3, and 16 further on. A code becomes a float by placing
// its byte: conversion instructions would be slower than memory. Each lane sums its own columns in their order, and the
// 32 sums are added in a butterfly, so the bits of y depend neither on ROWS nor on TOKENS, the rows of x that share
// what is read of w.
//
// -DFORMAT=q8_0, q4_1 or mxfp4, -DTOKENS=1 or more.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

#define DEVICE __device__ __forceinline__

constexpr int WARPS = 4, ROWS = 4;
constexpr int EACH = 8, LANES = 32 / EACH, STEP = 32 / LANES;  // columns of a lane, lanes of a block, blocks of a warp

DEVICE float widen(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// A digit of the selector, the last one first, names a byte of the float: 0-3 of the codes, 4-7 of the constant.
DEVICE float float_of(u32 codes, u32 constant, u32 selector) {
    return __uint_as_float(__byte_perm(codes, constant, selector));
}

struct q8_0 {  // f16 d, int8 q[32]; w = d q
    static constexpr int BYTES = 34, CHUNK = 32;
    float d, q[EACH];

    DEVICE void read(const u8* block, int piece) {
        d = widen(*(const u16*)block);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const u16* at = (const u16*)(block + 2 + 4 * piece + 16 * (i / 4));
            const u32 codes = (at[0] | u32(at[1]) << 16) ^ 0x80808080;             // q + 128, not below 0
            q[i] = float_of(codes, 0x4b000000, 0x7440 + i % 4) - 8388736.0f;       // 2^23 + 128 + q, less 2^23 + 128
        }
    }

    DEVICE float add(float sum, const float (&x)[EACH], float) const {
        float dot = q[0] * x[0];
#pragma unroll
        for (int i = 1; i < EACH; i++) dot = fmaf(q[i], x[i], dot);
        return fmaf(d, dot, sum);
    }
};

struct q4_1 {  // f16 d, f16 m, 16 bytes: the low halves are q[0..15], the high ones q[16..31]; w = d q + m
    static constexpr int BYTES = 20, CHUNK = 64;
    float d, m, q[EACH];  // 2 d; 8 + q / 2: the four bits at the top of the mantissa of 8

    DEVICE void read(const u8* block, int piece) {
        const u32 scales = *(const u32*)block, codes = *(const u32*)(block + 4 + 4 * piece);
        d = 2.0f * widen(u16(scales)), m = widen(u16(scales >> 16));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const u32 shifted = i < 4 ? codes << 3 : codes >> 1;
            q[i] = float_of(shifted & 0x78787878, 0x41000000, 0x7044 + 0x100 * (i % 4));
        }
    }

    DEVICE float add(float sum, const float (&x)[EACH], float total) const {
        float dot = -8.0f * total;
#pragma unroll
        for (int i = 0; i < EACH; i++) dot = fmaf(q[i], x[i], dot);
        return fmaf(d, dot, fmaf(m, total, sum));
    }
};

struct mxfp4 {  // e of 2^(e - 127), 16 bytes as in q4_1; w = d q, q a float of four bits: sign, exponent 2, mantissa 1
    static constexpr int BYTES = 17, CHUNK = 64;
    float d, q[EACH];  // q 2^-14: its bits below the sign are those of a float16, subnormals too

    DEVICE void read(const u8* block, int piece) {
        const u32 e = block[0];
        d = __uint_as_float(e == 255 ? 0x7fc00000 : e ? e << 23 : 0x00400000);
        const size_t at = size_t(block + 1 + 4 * piece), word = at & ~size_t(3);
        u32 codes = ((const u32*)word)[0];
        if (at != word) codes = __funnelshift_r(codes, ((const u32*)word)[1], 8 * u32(at - word));
#pragma unroll
        for (int half = 0; half < 2; half++, codes >>= 4) {
            const u32 tops = (codes & 0x08080808) << 4 | (codes & 0x07070707) << 1;
#pragma unroll
            for (int i = 0; i < 4; i++) q[4 * half + i] = widen(u16(__byte_perm(tops, 0, 0x4404 + 0x10 * i)));
        }
    }

    DEVICE float add(float sum, const float (&x)[EACH], float) const {
        float dot = q[0] * x[0];
#pragma unroll
        for (int i = 1; i < EACH; i++) dot = fmaf(q[i], x[i], dot);
        return fmaf(d, 16384.0f * dot, sum);
    }
};

constexpr int CHUNK = FORMAT::CHUNK, CHUNK_BYTES = CHUNK * FORMAT::BYTES;  // whole words
constexpr int STAGE_BYTES = CHUNK_BYTES + 16;                              // for a row that begins within a word
constexpr int LINE = 32 * 16;                                              // what a warp copies at once

DEVICE void copy_async(u32 shared, const u8* global, int bytes) {  // the rest of 16 becomes 0
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

DEVICE void wait_for_all_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

DEVICE float butterfly(float x) {
#pragma unroll
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

DEVICE float read_x(float (&x)[EACH], const float* at) {  // returns their sum
    const float4 low = __ldg((const float4*)at), high = __ldg((const float4*)(at + 16));
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// y, residual [T O], x [T 32 B], b [O] in float32, w [O B blocks] from a 16-byte boundary; b and residual may be null.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemv_blocks(float* y, const float* x, const u8* w, const float* b, const float* residual, int T, int O, int B) {
    __shared__ __align__(16) u8 stages[2][WARPS][ROWS][STAGE_BYTES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = lane % LANES;
    const int o0 = (blockIdx.x * WARPS + warp) * ROWS, t0 = blockIdx.y * TOKENS;
    if (o0 >= O) return;

    // Of each row: the bytes before it in its first word; this lane's next word, and the bytes of the row from there.
    int skipped[ROWS], left[ROWS];
    const u8* words[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i64 start = min(o0 + r, O - 1) * i64(B) * FORMAT::BYTES;
        skipped[r] = start % 16;
        left[r] = skipped[r] + B * FORMAT::BYTES - 16 * lane;
        words[r] = w + start - skipped[r] + 16 * lane;
    }
    const u32 mine = u32(__cvta_generic_to_shared(stages[0][warp][0])) + 16 * lane;
    auto bring_chunk = [&](int stage, bool last) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const u32 to = mine + (stage * WARPS * ROWS + r) * STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < STAGE_BYTES; i += LINE)
                if (i + 16 * lane < STAGE_BYTES && left[r] >= i + 16) copy_async(to + i, words[r] + i, 16);
            const int rest = left[r] % LINE;  // a row may end within a word
            if (last && 0 < rest && rest < 16) copy_async(to + left[r] - rest, words[r] + left[r] - rest, rest);
            words[r] += CHUNK_BYTES, left[r] -= CHUNK_BYTES;
        }
    };
    float sum[ROWS][TOKENS] = {};
    bring_chunk(0, B <= CHUNK);
    commit();
    for (int first = 0, stage = 0; first < B; first += CHUNK, stage ^= 1) {
        if (first + CHUNK < B) bring_chunk(stage ^ 1, B - first <= 2 * CHUNK);
        commit();
        wait_for_all_but_one();
        __syncwarp();
        for (int block = lane / LANES; block < min(CHUNK, B - first); block += STEP) {
            float numbers[TOKENS][EACH], total[TOKENS];
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                total[t] = read_x(numbers[t], x + 32 * (min(t0 + t, T - 1) * i64(B) + first + block) + 4 * piece);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                FORMAT weights;
                weights.read(stages[stage][warp][r] + skipped[r] + block * FORMAT::BYTES, piece);
#pragma unroll
                for (int t = 0; t < TOKENS; t++) sum[r][t] = weights.add(sum[r][t], numbers[t], total[t]);
            }
        }
        __syncwarp();  // all have read this stage before the copy after the next replaces it
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float all = butterfly(sum[r][t]);
            if (lane == r * TOKENS + t && o0 + r < O && t0 + t < T) {
                const i64 at = (t0 + t) * i64(O) + o0 + r;
                if (b) all += b[o0 + r];
                if (residual) all += residual[at];
                y[at] = all;
            }
        }
}
