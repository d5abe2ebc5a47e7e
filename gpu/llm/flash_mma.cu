// Flash attention on tensor cores: o = softmax(scale q k^T) v over the keys that each query may see.
//
// A block takes TILE_T queries of one head and walks over the keys in tiles of TILE_S. A warp keeps its WARP_T rows
// from the first score to the last store, so the softmax needs no other warp, and the weights never leave registers: as
// mma returns the scores, they lie as its left operand must. cp.async brings the next tile of keys and values while
// this one is multiplied: two stages, one barrier a tile.
//
// -DINPUT=bf16 or f16, -DHEAD_DIM=64 or 128, -DROW_TILES=1 or 2: with 2 a warp has 32 rows, which halves what it reads
// of k and v from shared memory; with 1 a short prompt wastes less of its tile. The bits of a row depend neither on
// that nor on the rows beside it: tiles begin at multiples of TILE_S, and one that a row cannot see leaves it as it is.

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

#define DEVICE __device__ __forceinline__
#define QUOTE_(text) #text
#define QUOTE(text) QUOTE_(text)
#define INFINITE __int_as_float(0x7f800000)

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int WARP_T = 16 * ROW_TILES, TILE_T = WARP_T * WARPS;
constexpr int TILE_S = 4096 / HEAD_DIM;                               // so that scores leave o its registers
constexpr int ROW_BYTES = 2 * HEAD_DIM, ROW_WORDS = ROW_BYTES / 16;   // of a token in shared memory
constexpr int KV_BYTES = TILE_S * ROW_BYTES, STAGE_BYTES = 2 * KV_BYTES;
constexpr int KEYS = TILE_S / 8, COLUMNS = HEAD_DIM / 8;              // of the scores and of o, in tiles of 8 columns
constexpr float LN2 = 0.693147181f, LOG2E = 1.44269504f;

struct bf16 {
    static constexpr u16 EXPONENT = 0x7f80;  // all ones in infinity and NaN
    static DEVICE float widen(u16 bits) { return __uint_as_float(u32(bits) << 16); }
};

struct f16 {
    static constexpr u16 EXPONENT = 0x7c00;
    static DEVICE float widen(u16 bits) {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
};

// A result of mma, 16 by 8: lane l has columns 2 (l % 4) and the next, in rows l / 4 and l / 4 + 8.
struct Tile {
    float at[2][2];  // [upper or lower half][column]
};

using Scores = Tile[ROW_TILES][KEYS];
using Output = Tile[ROW_TILES][COLUMNS];

// What a query may see: keys first .. end - 1, around its own position t + S - T.
struct Sight {
    int T, S, behind, ahead;
    DEVICE int first(int t) const { return max(0, t + S - T - behind); }
    DEVICE int end(int t) const { return min(S, t + S - T + ahead + 1); }
};

// ---- instructions ----

DEVICE float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE u32 narrow(float low, float high) {
    u32 pair;
    asm("cvt.rn." QUOTE(INPUT) "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

DEVICE void multiply_add(Tile& c, const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." QUOTE(INPUT) "." QUOTE(INPUT) ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.at[0][0]), "+f"(c.at[0][1]), "+f"(c.at[1][0]), "+f"(c.at[1][1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 by 8: lane l names row l % 8 of matrix l / 8, and gets columns 2 (l % 4) and the next of row l / 4
// of each; transposed, it gets rows 2 (l % 4) and the next of column l / 4.
#define LDMATRIX(name, transposed)                                                                     \
    DEVICE void name(u32 (&m)[4], u32 address) {                                                       \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" transposed ".shared.b16 {%0, %1, %2, %3}, [%4];"  \
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");      \
    }
LDMATRIX(load_matrices, "")
LDMATRIX(load_transposed, ".trans")

DEVICE void copy_async(u32 shared, const u16* global, bool there) {  // what is not there is not read, and becomes 0
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared), "l"(global), "r"(there ? 16 : 0) : "memory");
}

DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE float quad_max(float x) {  // of the four lanes that share a row
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// ---- shared memory: TILE_T rows of q, and later of o; then two stages of a tile of k and a tile of v ----

extern __shared__ __align__(1024) unsigned char shared_memory[];

// Where a 16-byte word of a row lies. Eight rows have the same word in eight different places, so that ldmatrix, which
// reads it of eight rows at once, meets every bank once. The word 2 i further on lies at the exclusive or with 32 i.
DEVICE u32 place(int row, int word) { return row * ROW_BYTES + 16 * (word ^ row % 8); }

template <int ROWS>
DEVICE void load_rows(u32 shared, const u16* global, int stride, int first, int end) {
    constexpr int AT_ONCE = THREADS / ROW_WORDS;
    const int row = threadIdx.x / ROW_WORDS, word = threadIdx.x % ROW_WORDS;
    global += (first + row) * i64(stride) + 8 * word;
#pragma unroll
    for (int i = 0; i < ROWS; i += AT_ONCE)
        copy_async(shared + place(row, word) + i * ROW_BYTES, global + i * i64(stride), first + row + i < end);
}

// ---- what a warp does with a tile ----

DEVICE void clear(Output& o, float (&highest)[ROW_TILES][2], float (&sum)[ROW_TILES][2]) {
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; i++) {
        highest[i / 2][i % 2] = -INFINITE, sum[i / 2][i % 2] = 0.0f;
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j++) o[i / 2][j / 2].at[i % 2][j % 2] = 0.0f;
    }
}

DEVICE void score(Scores& scores, u32 q_lane, u32 k_lane) {
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) {
        u32 q[ROW_TILES][4], k[4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) load_matrices(q[r], (q_lane ^ 32 * step) + r * 16 * ROW_BYTES);
#pragma unroll
        for (int j = 0; j < KEYS; j += 2) {
            load_matrices(k, (k_lane ^ 32 * step) + j * 8 * ROW_BYTES);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply_add(scores[r][j], q[r], k[0], k[1]);
                multiply_add(scores[r][j + 1], q[r], k[2], k[3]);
            }
        }
    }
}

DEVICE void hide(Scores& scores, const Sight& sight, int t0, int s0) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; i++) {
        const int t = t0 + 8 * i + lane / 4, first = sight.first(t), end = sight.end(t);
#pragma unroll
        for (int j = 0; j < 2 * KEYS; j++) {
            const int s = s0 + 8 * (j / 2) + 2 * (lane % 4) + j % 2;
            if (s < first || s >= end) scores[i / 2][j / 2].at[i % 2][j % 2] = -INFINITE;
        }
    }
}

// Scores of one row become weights 2^(scale (score - highest)); as the highest grows, sum and o shrink.
DEVICE void weigh(Tile (&scores)[KEYS], Tile (&o)[COLUMNS], int half, float& highest, float& sum, float scale) {
    const float before = highest;
#pragma unroll
    for (int j = 0; j < KEYS; j++) highest = fmaxf(highest, fmaxf(scores[j].at[half][0], scores[j].at[half][1]));
    highest = quad_max(highest);
    const float level = highest == -INFINITE ? 0.0f : highest;  // while a row sees nothing, its weights are 0
    const float shift = level * scale, shrink = exp2((before - level) * scale);
    sum *= shrink;
#pragma unroll
    for (int j = 0; j < 2 * KEYS; j++) {
        float& x = scores[j / 2].at[half][j % 2];
        x = exp2(fmaf(x, scale, -shift));
        sum += x;
    }
#pragma unroll
    for (int j = 0; j < 2 * COLUMNS; j++) o[j / 2].at[half][j % 2] *= shrink;
}

DEVICE void mix(Output& o, const Scores& weights, u32 v_lane) {
    u32 p[ROW_TILES][TILE_S / 16][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int i = 0; i < 2 * KEYS; i++) {
            const float(&pair)[2] = weights[r][i / 2].at[i % 2];
            p[r][i / 4][i % 4] = narrow(pair[0], pair[1]);
        }
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2)
#pragma unroll
        for (int step = 0; step < TILE_S / 16; step++) {
            u32 v[4];
            load_transposed(v, (v_lane ^ 16 * j) + step * 16 * ROW_BYTES);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply_add(o[r][j], p[r][step], v[0], v[1]);
                multiply_add(o[r][j + 1], p[r][step], v[2], v[3]);
            }
        }
}

// ---- what a warp leaves ----

DEVICE bool all_finite(const Output& o) {
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * ROW_TILES * COLUMNS; i++)
        zero = fmaf(o[i / 4 / COLUMNS][i / 4 % COLUMNS].at[i / 2 % 2][i % 2], 0.0f, zero);
    return zero == 0.0f;
}

// By way of shared memory, so that 16 bytes are written at once. q has been read, its place is free.
DEVICE void store(u16* o, const Output& tiles, unsigned char* shared, int stride, int rows) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const float(&pair)[2] = tiles[i / 2][j].at[i % 2];
            *(u32*)(shared + place(8 * i + lane / 4, j) + 4 * (lane % 4)) = narrow(pair[0], pair[1]);
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < WARP_T * ROW_WORDS; i += 32) {
        const int row = (i + lane) / ROW_WORDS, word = lane % ROW_WORDS;
        if (row < rows) *(uint4*)(o + row * i64(stride) + 8 * word) = *(const uint4*)(shared + place(row, word));
    }
}

// ---- infinity and NaN in v, which reach the queries that see them and no other ----
//
// A tile multiplies what a query may not see by 0, which does not hide these. So where a result is not finite, the block
// walks once more, with 0 in their place, and adds them to the rows that see them.

DEVICE bool is_finite(u16 bits) { return (bits & INPUT::EXPONENT) != INPUT::EXPONENT; }

DEVICE void keep_finite(u16* tile) {
    for (int i = threadIdx.x; i < KV_BYTES / 2; i += THREADS) tile[i] = is_finite(tile[i]) ? tile[i] : 0;
}

DEVICE void add_the_others(Output& o, const u16* v, int stride, const Sight& sight, int t0) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int s = 0; s < sight.S; s++)
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j++) {
            const u16 bits = v[s * i64(stride) + 8 * (j / 2) + 2 * (lane % 4) + j % 2];
#pragma unroll
            for (int i = 0; i < 2 * ROW_TILES; i++) {
                const int t = t0 + 8 * i + lane / 4;
                if (!is_finite(bits) && s >= sight.first(t) && s < sight.end(t))
                    o[i / 2][j / 2].at[i % 2][j % 2] += INPUT::widen(bits);
            }
        }
}

// o, q [T N H] and k, v [S K H] in INPUT, lse [T N] in float32. scale, above 0, has log2(e) in it, for exp2. sinks [N]
// in float32, or none of them: a score more for each head, without a value, that only the shares of o know of.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
flash_mma(u16* o, float* lse, const u16* q, const u16* k, const u16* v, int T, int S, int num_kv_heads, int behind,
          int ahead, float scale, const float* sinks, int num_sinks) {
    const Sight sight{T, S, behind, ahead};
    const int num_heads = gridDim.y, head = blockIdx.y, kv_head = head / (num_heads / num_kv_heads);
    const int stride = num_heads * HEAD_DIM, kv_stride = num_kv_heads * HEAD_DIM;
    q += head * HEAD_DIM, o += head * HEAD_DIM, lse += head, k += kv_head * HEAD_DIM, v += kv_head * HEAD_DIM;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int t_block = (gridDim.x - 1 - blockIdx.x) * TILE_T;  // the last queries see the most, so they begin first
    const int t0 = t_block + warp * WARP_T, t_last = min(t_block + TILE_T, T) - 1;
    const int begin = sight.first(t_block) / TILE_S * TILE_S, end = max(begin + 1, sight.end(t_last));
    const u32 shared = u32(__cvta_generic_to_shared(shared_memory)), stages = shared + TILE_T * ROW_BYTES;
    const u32 q_lane = shared + place(warp * WARP_T + lane % 16, lane / 16);
    const u32 k_lane = place(lane / 16 * 8 + lane % 8, lane / 8 % 2), v_lane = place(lane % 16, lane / 16) + KV_BYTES;

    Output mixed;
    float highest[ROW_TILES][2], sum[ROW_TILES][2];
    load_rows<TILE_T>(shared, q, stride, t_block, T);
    for (bool again = false;; again = true) {
        clear(mixed, highest, sum);
        u32 stage = stages;  // of the tile that is brought; the other one is multiplied
        for (int coming = begin; coming < end + TILE_S; coming += TILE_S) {
            wait_for_copies();
            __syncthreads();  // the tile is there for all, and all have done with the last, which the next replaces
            if (coming < end) {
                load_rows<TILE_S>(stage, k, kv_stride, coming, S);
                load_rows<TILE_S>(stage + KV_BYTES, v, kv_stride, coming, S);
            }
            stage = 2 * stages + STAGE_BYTES - stage;
            if (coming == begin) continue;
            if (again) {
                keep_finite((u16*)(shared_memory + (stage + KV_BYTES - shared)));
                __syncthreads();
            }
            const int s0 = coming - TILE_S;
            if (s0 >= sight.end(t0 + WARP_T - 1)) continue;
            Scores scores = {};
            score(scores, q_lane, stage + k_lane);
            if (s0 < sight.first(t0 + WARP_T - 1) || s0 + TILE_S > sight.end(t0)) hide(scores, sight, t0, s0);
#pragma unroll
            for (int i = 0; i < 2 * ROW_TILES; i++)
                weigh(scores[i / 2], mixed[i / 2], i % 2, highest[i / 2][i % 2], sum[i / 2][i % 2], scale);
            mix(mixed, scores, stage + v_lane);
        }
        if (again) add_the_others(mixed, v, kv_stride, sight, t0);
        if (again || !__syncthreads_or(!all_finite(mixed))) break;
    }
    const float sink = num_sinks ? sinks[head] * LOG2E : -INFINITE;
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; i++) {
        const int r = i / 2, half = i % 2, t = t0 + 8 * i + lane / 4;
        const float total = quad_sum(sum[r][half]), shared_by = total + exp2(sink - highest[r][half] * scale);
        const float share = total == 0.0f ? 0.0f : __fdividef(1.0f, shared_by);
        if (lane % 4 == 0 && t < T) lse[t * i64(num_heads)] = (highest[r][half] * scale + log2(total)) * LN2;
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j++) mixed[r][j / 2].at[half][j % 2] *= share;
    }
    store(o + t0 * i64(stride), mixed, shared_memory + warp * WARP_T * ROW_BYTES, stride, T - t0);
}
