// y = x w^T + b + residual for few rows of x: w is the traffic, read once in 16-byte words.
//
// A warp takes ROWS rows of w and TOKENS rows of x. Its lanes take the words of a row in turn, and a lane asks for
// AHEAD words of each row before it uses the first: what is on its way, not arithmetic, decides the speed. Each lane
// sums its own words in their order, and the 32 sums are added in a butterfly, so the bits of y do not depend on
// TOKENS, ROWS or AHEAD: a token's are the same alone, in a batch, and in a prefill.
//
// -DX, -DW, -DB: f32, bf16 or f16, the formats of x (and of y and residual), w and b; x is f32 or as w.
// -DTOKENS=1 or more.

using u16 = unsigned short;
using u32 = unsigned int;

#define DEVICE __device__ __forceinline__

constexpr int WARPS = 4, ROWS = 2, AHEAD = 2;

struct Word {  // 16 bytes of numbers
    u32 part[4];
};

struct f32 {
    using Stored = float;
    static DEVICE float widen(float x) { return x; }
    static DEVICE float narrow(float x) { return x; }
    static DEVICE float at(const Word& word, int i) { return __uint_as_float(word.part[i]); }
};

struct bf16 {
    using Stored = u16;
    static DEVICE float widen(u16 bits) { return __uint_as_float(u32(bits) << 16); }
    static DEVICE float at(const Word& word, int i) {
        const u32 pair = word.part[i / 2];
        return __uint_as_float(i % 2 ? pair & 0xffff0000 : pair << 16);
    }
    static DEVICE u16 narrow(float x) {
        u16 bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
    }
};

struct f16 {
    using Stored = u16;
    static DEVICE float widen(u16 bits) {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
    static DEVICE float at(const Word& word, int i) { return widen(u16(word.part[i / 2] >> 16 * (i % 2))); }
    static DEVICE u16 narrow(float x) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
    }
};

template <class F>
constexpr int COUNT = sizeof(Word) / sizeof(typename F::Stored);  // numbers in a word

DEVICE Word load(const void* at) {
    const uint4 bits = __ldg((const uint4*)at);
    return {bits.x, bits.y, bits.z, bits.w};
}

DEVICE float butterfly(float x) {
#pragma unroll
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// y, residual [T O], x [T D], w [O D], b [O]; b and residual may be null. D is a multiple of COUNT<W>.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemv(X::Stored* y, const X::Stored* x, const W::Stored* w, const B::Stored* b, const X::Stored* residual, int T, int O,
     int D) {
    const int lane = threadIdx.x % 32, o0 = (blockIdx.x * WARPS + threadIdx.x / 32) * ROWS, t0 = blockIdx.y * TOKENS;
    if (o0 >= O) return;
    float sum[ROWS][TOKENS] = {};
#pragma unroll AHEAD
    for (int d = lane * COUNT<W>; d < D; d += 32 * COUNT<W>) {
        Word weights[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) weights[r] = load(w + min(o0 + r, O - 1) * (long long)D + d);
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
#pragma unroll
            for (int i = 0; i < COUNT<W>; i += COUNT<X>) {
                const Word numbers = load(x + min(t0 + t, T - 1) * (long long)D + d + i);
#pragma unroll
                for (int j = 0; j < COUNT<X>; j++)
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        sum[r][t] = fmaf(X::at(numbers, j), W::at(weights[r], i + j), sum[r][t]);
            }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float total = butterfly(sum[r][t]);
            if (lane == r * TOKENS + t && o0 + r < O && t0 + t < T) {
                const long long at = (t0 + t) * (long long)O + o0 + r;
                if (b) total += B::widen(b[o0 + r]);
                if (residual) total += X::widen(residual[at]);
                y[at] = X::narrow(total);
            }
        }
}
