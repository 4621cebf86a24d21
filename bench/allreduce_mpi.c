/* All-reduce of f32 by the installed MPI, out of place as most programs call it: what `hexagram bench all_reduce` is
 * compared with where no interpreter should be in between.
 *
 *   mpicc -O2 bench/allreduce_mpi.c -o allreduce_mpi && mpirun -n 2 ./allreduce_mpi
 *
 * Medians of rank 0; above 256 KiB a barrier before each, as `hexagram bench` has. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(size_t bytes, int rank) {
    size_t count = bytes / sizeof(float);
    int times = bytes <= 262144 ? 2000 : bytes <= 16777216 ? 40 : 9;
    float *from = malloc(bytes), *to = malloc(bytes);
    double *took = malloc(times * sizeof(double));
    for (size_t i = 0; i < count; i++) from[i] = 1;
    for (int i = -3; i < times; i++) {
        if (bytes > 262144) MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(from, to, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0) took[i] = MPI_Wtime() - start;
    }
    qsort(took, times, sizeof(double), ascending);
    if (rank == 0) printf("%zu B median %.3f us\n", bytes, took[times / 2] * 1e6);
    free(from), free(to), free(took);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (size_t bytes = 4; bytes <= (size_t)64 << 20; bytes *= 4) measure(bytes, rank);
    measure(8, rank);
    MPI_Finalize();
    return 0;
}
