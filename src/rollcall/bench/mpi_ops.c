/* The ops of `rollcall bench` by MPI, in the manner of the OSU micro-benchmarks: for each size some rounds without
   measuring, a barrier, then a loop between two looks at the clock; the mean over all ranks is printed.

   mpirun -n RANKS mpi_ops SECONDS OP SIZE[,SIZE...] [OP SIZES ...]     →     op size_bytes mean_seconds */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static char *given, *taken;

static void call(const char *op, int bytes) {
    int count = bytes / (int)sizeof(float), share = bytes / ranks, last = ranks - 1;
    if (!strcmp(op, "all_reduce"))
        MPI_Allreduce(given, taken, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(op, "broadcast"))
        MPI_Bcast(given, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    else if (!strcmp(op, "reduce"))
        MPI_Reduce(given, taken, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    else if (!strcmp(op, "all_gather"))
        MPI_Allgather(given, share, MPI_BYTE, taken, share, MPI_BYTE, MPI_COMM_WORLD);
    else if (!strcmp(op, "reduce_scatter"))
        MPI_Reduce_scatter_block(given, taken, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(op, "all_to_all"))
        MPI_Alltoall(given, share, MPI_BYTE, taken, share, MPI_BYTE, MPI_COMM_WORLD);
    else if (!strcmp(op, "barrier"))
        MPI_Barrier(MPI_COMM_WORLD);
    else if (!strcmp(op, "send_one_way")) { /* there and back */
        if (rank == 0) {
            MPI_Send(given, bytes, MPI_BYTE, last, 0, MPI_COMM_WORLD);
            MPI_Recv(taken, bytes, MPI_BYTE, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == last) {
            MPI_Recv(taken, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(given, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    } else if (!strcmp(op, "send_two_way"))
        MPI_Sendrecv(given, bytes, MPI_BYTE, (rank + 1) % ranks, 0, taken, bytes, MPI_BYTE, (rank + ranks - 1) % ranks, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else {
        fprintf(stderr, "%s is no op of this program\n", op);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

/* The mean of so many calls; `own` ranks take part in the op, the others do not count. */
static double mean_s(const char *op, int bytes, int times) {
    int one_way = !strcmp(op, "send_one_way");
    double own, sum;
    MPI_Barrier(MPI_COMM_WORLD);
    own = MPI_Wtime();
    for (int i = 0; i < times; i++)
        call(op, bytes);
    own = (MPI_Wtime() - own) / times / (one_way ? 2 : 1);
    if (one_way && rank != 0 && rank != ranks - 1)
        own = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / (one_way ? 2 : ranks);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double each_s = atof(argv[1]);
    for (int at = 2; at + 1 < argc; at += 2) {
        for (char *text = strtok(argv[at + 1], ","); text; text = strtok(NULL, ",")) {
            int bytes = atoi(text), room = bytes < 64 ? 64 : bytes;
            given = malloc(room);
            taken = malloc(room);
            memset(given, 0, room);
            memset(taken, 0, room);
            for (int i = 0; i < 3; i++)
                call(argv[at], bytes);
            double about_s = mean_s(argv[at], bytes, 3);
            int times = about_s > 0 ? (int)(each_s / about_s) : 1000;
            times = times < 3 ? 3 : times > 1000 ? 1000 : times;
            MPI_Bcast(&times, 1, MPI_INT, 0, MPI_COMM_WORLD);
            double found_s = mean_s(argv[at], bytes, times);
            if (rank == 0) {
                printf("%s %d %.9e\n", argv[at], bytes, found_s);
                fflush(stdout);
            }
            free(given);
            free(taken);
        }
    }
    MPI_Finalize();
    return 0;
}
