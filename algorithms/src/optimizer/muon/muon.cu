// The Muon step of a matrix: the twin of mod.rs and newton_schulz.rs.
//
// A product is computed tile by tile, each by one thread block from slices of both factors in shared memory. Every
// element is one sum in the order of the inner index, as on the host, so no two threads share one. The product of a
// matrix with its own transpose is symmetric to the bit, as are its polynomials, since x y = y x. So only tiles on and
// above the diagonal are computed, and their elements stored twice; and a row can be read instead of a column.

#include "device.cuh"
#include "elements.cuh"
#include "sums.cuh"

/// Threads of a block. A processor has room for at least two blocks that compute a product; one computes while the
/// other waits.
constexpr u32 THREADS = 256;

/// Rows and columns of a tile of a product; every thread computes `EACH` × `EACH` elements of it.
constexpr u32 TILE = 64;
constexpr u32 EACH = 4;
constexpr u32 ACROSS = TILE / EACH;

/// Number of inner indices of the slices in shared memory, and the number of elements that a thread loads.
constexpr u32 DEPTH = 16;
constexpr u32 BROUGHT = TILE * DEPTH / THREADS;

/// Stride of the inner indices of a slice in shared memory, which spreads them over banks and keeps runs of four
/// aligned.
constexpr u32 PITCH = TILE + 4;

/// Rows and columns of a tile of a transpose.
constexpr u32 TURNED = 32;

/// Smallest norm by which a matrix is divided.
constexpr double LEAST_NORM = 1e-7;

/// Calls `work(row, column)` for the first element of every tile of a matrix, distributed over the thread blocks.
template <u32 SIDE, typename Work>
__device__ inline void each_tile(u64 rows, u64 columns, Work work) {
    u64 across = (columns + SIDE - 1) / SIDE;
    u64 tiles = (rows + SIDE - 1) / SIDE * across;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) work(tile / across * SIDE, tile % across * SIDE);
}

/// A tile's part of a factor: up to `TILE` of its lines, slice by slice. Lines are the rows of a matrix if `ROWS`,
/// otherwise its columns.
template <typename T, bool ROWS>
struct Factor {
    /// Distances of the elements that a thread loads; neighbouring threads load neighbouring elements.
    static constexpr u32 LINES_APART = ROWS ? THREADS / DEPTH : 0;
    static constexpr u32 INNER_APART = ROWS ? 0 : THREADS / TILE;

    /// Address of this thread's first element of the next slice, and the distances to its next one, and to the next
    /// slice.
    const T* at;
    u64 apart, ahead;
    /// Numbers of lines and of inner indices from that element on.
    u64 lines, inner;

    /// Creates the part that begins with a line of `count`, each of `length` elements.
    __device__ inline Factor(const T* from, u64 first, u64 count, u64 length) {
        u64 line = first + line_of(0);
        at = from + (ROWS ? line * length + inner_of(0) : inner_of(0) * count + line);
        apart = ROWS ? LINES_APART * length : INNER_APART * count;
        ahead = ROWS ? DEPTH : DEPTH * count;
        lines = line < count ? count - line : 0;
        inner = inner_of(0) < length ? length - inner_of(0) : 0;
    }

    /// Loads this thread's elements of the next slice; 0 beyond the end.
    __device__ inline void load(T (&to)[BROUGHT]) {
#pragma unroll
        for (u32 i = 0; i < BROUGHT; i++) {
            bool exists = i * LINES_APART < lines && i * INNER_APART < inner;
            to[i] = exists ? at[i * apart] : T();
        }
        at += ahead;
        inner = inner < DEPTH ? 0 : inner - DEPTH;
    }

    /// Stores the loaded elements to shared memory.
    __device__ inline void store(const T (&loaded)[BROUGHT], T (&slice)[DEPTH][PITCH]) const {
#pragma unroll
        for (u32 i = 0; i < BROUGHT; i++) slice[inner_of(i)][line_of(i)] = loaded[i];
    }

    __device__ static inline u32 line_of(u32 i) {
        return (ROWS ? threadIdx.x / DEPTH : threadIdx.x % TILE) + i * LINES_APART;
    }

    __device__ static inline u32 inner_of(u32 i) {
        return (ROWS ? threadIdx.x % DEPTH : threadIdx.x / TILE) + i * INNER_APART;
    }
};

/// Adds the products of one inner index.
template <typename T>
__device__ inline void add_products(const T (&left)[PITCH], const T (&right)[PITCH], T (&sums)[EACH][EACH]) {
    T x[EACH], y[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        x[i] = left[threadIdx.x / ACROSS * EACH + i];
        y[i] = right[threadIdx.x % ACROSS * EACH + i];
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
#pragma unroll
        for (u32 j = 0; j < EACH; j++) sums[i][j] += x[i] * y[j];
    }
}

/// Adds the product of two factors, whose lines have `inner` elements, to this thread's elements of a tile.
template <typename T, bool ROWS>
__device__ inline void add_product(Factor<T, ROWS> left, Factor<T, ROWS> right, u64 inner, T (&sums)[EACH][EACH]) {
    __shared__ __align__(16) T slice[2][DEPTH][PITCH];
    T x[BROUGHT], y[BROUGHT];
    left.load(x);
    right.load(y);
#pragma unroll 1
    for (u64 left_over = inner; left_over > 0; left_over -= lesser(left_over, (u64)DEPTH)) {
        left.store(x, slice[0]);
        right.store(y, slice[1]);
        __syncthreads();
        // The next elements are loaded during the computation.
        left.load(x);
        right.load(y);
        // Elements beyond the end must not be added, not even as 0: −0 + 0 differs from −0.
        if (left_over >= DEPTH) {
#pragma unroll
            for (u32 k = 0; k < DEPTH; k++) add_products(slice[0][k], slice[1][k], sums);
        } else {
#pragma unroll 1
            for (u32 k = 0; k < left_over; k++) add_products(slice[0][k], slice[1][k], sums);
        }
        __syncthreads();
    }
}

/// Calls `work(sum, row, column)` for this thread's elements of a tile that are inside the matrix.
template <typename T, typename Work>
__device__ inline void each_sum(T (&sums)[EACH][EACH], u64 top, u64 left, u64 rows, u64 columns, Work work) {
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            u64 row = top + threadIdx.x / ACROSS * EACH + i;
            u64 column = left + threadIdx.x % ACROSS * EACH + j;
            if (row < rows && column < columns) work(sums[i][j], row, column);
        }
    }
}

/// Computes `to ← f(X Xᵀ)`, element by element: `f` is called with an element and its position. X has `rows` rows of
/// `inner` elements.
template <typename T, typename F>
__device__ inline void square(const T* from, u64 rows, u64 inner, T* to, F f) {
    each_tile<TILE>(rows, rows, [=](u64 top, u64 left) {
        if (top > left) return;
        T sums[EACH][EACH] = {};
        add_product(Factor<T, true>(from, top, rows, inner), Factor<T, true>(from, left, rows, inner), inner, sums);
        each_sum(sums, top, left, rows, rows, [=](T sum, u64 row, u64 column) {
            T x = f(sum, row * rows + column);
            to[row * rows + column] = x;
            if (top < left) to[column * rows + row] = x;
        });
    });
}

/// Computes `to ← a X + P X`, P being symmetric.
template <typename T>
__device__ inline void next(const T* polynomial, const T* matrix, u64 rows, u64 columns, T a, T* to) {
    each_tile<TILE>(rows, columns, [=](u64 top, u64 left) {
        T sums[EACH][EACH] = {};
        each_sum(sums, top, left, rows, columns, [=](T& sum, u64 row, u64 column) {
            sum = a * matrix[row * columns + column];
        });
        Factor<T, false> lines(polynomial, top, rows, rows);
        add_product(lines, Factor<T, false>(matrix, left, columns, rows), rows, sums);
        each_sum(sums, top, left, rows, columns, [=](T sum, u64 row, u64 column) {
            to[row * columns + column] = sum;
        });
    });
}

template <typename T>
__device__ inline void transpose(const T* from, u64 rows, u64 columns, T* to) {
    __shared__ T tile[TURNED][TURNED + 1];
    u32 line = threadIdx.x / TURNED;
    u32 place = threadIdx.x % TURNED;
    each_tile<TURNED>(rows, columns, [=](u64 top, u64 left) {
        for (u32 i = line; i < TURNED; i += THREADS / TURNED) {
            if (top + i < rows && left + place < columns) tile[i][place] = from[(top + i) * columns + left + place];
        }
        __syncthreads();
        for (u32 i = line; i < TURNED; i += THREADS / TURNED) {
            if (left + i < columns && top + place < rows) to[(left + i) * rows + top + place] = tile[place][i];
        }
        __syncthreads();
    });
}

/// Updates the momentum, and stores the direction to orthogonalize.
template <typename T>
__device__ inline void momentum(
    const T* gradients, T* momentum, T* direction, u64 len, T decay, T take, u32 nesterov) {
    T* const arrays[] = {momentum, direction, (T*)gradients};
    change<2>(len, arrays, [=](T(&at)[3]) {
        auto& [m, d, g] = at;
        m = canonical(decay * m + take * g);
        d = nesterov ? take * g + decay * m : m;
    });
}

template <typename T>
__device__ inline void step(T* parameters, const T* direction, u64 len, T rate, T keep) {
    const T* const from[] = {parameters, direction};
    compute(len, parameters, from, [=](T(&at)[2]) { return canonical(keep * at[0] - rate * at[1]); });
}

template <typename T>
__device__ inline void scale(T* matrix, u64 len, const double* squares) {
    T factor = (T)(1.0 / greater(sqrt(*squares), LEAST_NORM));
    const T* const from[] = {matrix};
    compute(len, matrix, from, [=](T(&at)[1]) { return at[0] * factor; });
}

#define ENTRIES(T, NAME)                                                                                         \
    extern "C" __global__ void muon_momentum_##NAME(                                                             \
        const T* gradients, T* first, T* direction, u64 len, T decay, T take, u32 nesterov) {                    \
        momentum(gradients, first, direction, len, decay, take, nesterov);                                       \
    }                                                                                                            \
    extern "C" __global__ void muon_transpose_##NAME(const T* from, u64 rows, u64 columns, T* to) {              \
        transpose(from, rows, columns, to);                                                                      \
    }                                                                                                            \
    extern "C" __global__ void muon_squares_##NAME(const T* matrix, u64 len, double* sums) {                     \
        sum_blocks(len, sums, [=](u64 i) { return (double)matrix[i] * (double)matrix[i]; });                     \
    }                                                                                                            \
    extern "C" __global__ void muon_scale_##NAME(T* matrix, u64 len, const double* squares) {                    \
        scale(matrix, len, squares);                                                                             \
    }                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) muon_gram_##NAME(                                      \
        const T* matrix, u64 rows, u64 columns, T* to) {                                                         \
        square(matrix, rows, columns, to, [](T sum, u64) { return sum; });                                       \
    }                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) muon_polynomial_##NAME(                                \
        const T* gram, u64 rows, T b, T c, T* to) {                                                              \
        square(gram, rows, rows, to, [=](T sum, u64 at) { return b * gram[at] + c * sum; });                     \
    }                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) muon_next_##NAME(                                      \
        const T* polynomial, const T* matrix, u64 rows, u64 columns, T a, T* to) {                               \
        next(polynomial, matrix, rows, columns, a, to);                                                          \
    }                                                                                                            \
    extern "C" __global__ void muon_step_##NAME(T* parameters, const T* direction, u64 len, T rate, T keep) {    \
        step(parameters, direction, len, rate, keep);                                                            \
    }

ENTRIES(float, f32)
ENTRIES(double, f64)

extern "C" __global__ void muon_sums(const double* from, u64 len, u32 rows, double* to) {
    sum_sums(from, len, rows, to);
}

ENTRY(muon_momentum_f32)
ENTRY(muon_momentum_f64)
ENTRY(muon_transpose_f32)
ENTRY(muon_transpose_f64)
ENTRY(muon_squares_f32)
ENTRY(muon_squares_f64)
ENTRY(muon_scale_f32)
ENTRY(muon_scale_f64)
ENTRY(muon_gram_f32)
ENTRY(muon_gram_f64)
ENTRY(muon_polynomial_f32)
ENTRY(muon_polynomial_f64)
ENTRY(muon_next_f32)
ENTRY(muon_next_f64)
ENTRY(muon_step_f32)
ENTRY(muon_step_f64)
ENTRY(muon_sums)
