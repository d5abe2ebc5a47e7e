// Functions of the toolkit's library, one row of the result each: FUNCTIONS is a list of ROW(expression of x and y).
#define ROW(expression) out[row++ * n + i] = (expression);

extern "C" __global__ void functions(float* out, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    int row = 0;
    FUNCTIONS
}
