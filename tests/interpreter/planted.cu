// Small kernels that need every synchronisation they have, for blocks of 64 threads.

extern "C" __global__ void block_sum(float* out, const float* x)
{
    __shared__ float part[2], held[64];
    float sum = 0;
    for (int step = 0; step < 2; step++) {
        held[threadIdx.x] = x[64 * step + threadIdx.x];
        __syncthreads();
        float other = held[63 - threadIdx.x] + held[threadIdx.x];
        for (int d = 16; d; d >>= 1)
            other += __shfl_xor_sync(0xffffffffu, other, d);
        if (threadIdx.x % 32 == 0)
            part[threadIdx.x / 32] = other;
        __syncthreads();
        sum += part[0] + part[1];
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void swapped(float* out, const float* x)
{
    __shared__ float held[64];
    held[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    float other = held[threadIdx.x ^ 1];
    __syncwarp();
    held[threadIdx.x ^ 3] = 2 * other;
    __syncwarp(threadIdx.x & 4 ? 0xf0f0f0f0u : 0x0f0f0f0fu);
    out[threadIdx.x] = held[threadIdx.x];
}

extern "C" __global__ void copied(float* out, const float* x)
{
    __shared__ __align__(16) float held[2][256];
    float sum = 0;
    for (int step = -1; step < 3; step++) {
        if (step < 2) {
            unsigned to = (unsigned)__cvta_generic_to_shared(&held[(step + 1) & 1][4 * threadIdx.x]);
            const float* from = x + 256 * (step + 1) + 4 * threadIdx.x;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (step < 0)
            continue;
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        for (int i = 0; i < 4; i++)
            sum += held[step & 1][(threadIdx.x + 64 * i + 17) & 255];
        __syncthreads();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    out[threadIdx.x] = sum;
}

extern "C" __global__ void fetched(const float* x)
{
    __shared__ __align__(16) float held[256];
    unsigned to = (unsigned)__cvta_generic_to_shared(&held[4 * threadIdx.x]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + 4 * threadIdx.x) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Each block sums a part; the last one to finish sums the parts.
extern "C" __global__ void last_block(float* out, const float* x, float* parts, unsigned* count)
{
    __shared__ bool is_last;
    parts[64 * blockIdx.x + threadIdx.x] = 2 * x[64 * blockIdx.x + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd(count, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (is_last) {
        float sum = 0;
        for (int i = 0; i < gridDim.x; i++)
            sum += parts[64 * i + 63 - threadIdx.x];
        out[threadIdx.x] = sum;
    }
}

// A tile of 32 rows of 32 words: columns are read after rows are written.
extern "C" __global__ void transposed(float* out, const float* x)
{
    __shared__ float tile[32][32];
    for (int row = threadIdx.x / 32; row < 32; row += 2)
        tile[row][(threadIdx.x & 31) ^ (row & SWIZZLE)] = x[32 * row + (threadIdx.x & 31)];
    __syncthreads();
    for (int row = threadIdx.x / 32; row < 32; row += 2)
        out[32 * row + (threadIdx.x & 31)] = tile[threadIdx.x & 31][row ^ (threadIdx.x & SWIZZLE)];
}

// Neighbours write the bytes of one word; those of other warps and blocks lie in the same word too.
extern "C" __global__ void bytes(unsigned char* out)
{
    __shared__ unsigned char held[64];
    held[(threadIdx.x * 33) & 63] = threadIdx.x;
    out[blockIdx.x + 2 * threadIdx.x] = held[(threadIdx.x * 33) & 63];
}

extern "C" __global__ void one_word(int* out, int value)
{
    out[0] = value < 0 ? (int)threadIdx.x : value;
}

extern "C" __global__ void shifted(float* out, const float4* x)
{
    float4 v = x[threadIdx.x];
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

extern "C" __global__ void unset(float* out)
{
    __shared__ float held[64];
    if (threadIdx.x)
        held[threadIdx.x] = 1;
    out[threadIdx.x] = held[threadIdx.x];
}
