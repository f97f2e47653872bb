// nccl_loop SIZES: all_gather of one rank, called from C++ as nccl-tests does it: all calls are queued and waited for
// once, between two events. Prints for each size (bytes, separated by commas) the microseconds of a call, out of place,
// queued and in a CUDA graph: {"8": {"queued": 1.0, "graph": 1.0}}
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#define CHECK(call, good)                                                       \
    do {                                                                        \
        if ((call) != (good)) {                                                 \
            fprintf(stderr, "nccl_loop: %s failed in line %d\n", #call, __LINE__); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)
#define CUDA(call) CHECK(call, cudaSuccess)
#define NCCL(call) CHECK(call, ncclSuccess)

constexpr int WARMUP = 20, CALLS = 200;

static ncclComm_t comm;
static cudaStream_t stream;

static void all_gather(int calls, void* from, void* to, size_t size_bytes) {
    for (int number = 0; number < calls; number++)
        NCCL(ncclAllGather(from, to, size_bytes / sizeof(float), ncclFloat, comm, stream));
}

template <typename Calls>
static double microseconds(Calls calls) {
    cudaEvent_t first, last;
    CUDA(cudaEventCreate(&first));
    CUDA(cudaEventCreate(&last));
    CUDA(cudaEventRecord(first, stream));
    calls();
    CUDA(cudaEventRecord(last, stream));
    CUDA(cudaEventSynchronize(last));
    float taken_ms = 0;
    CUDA(cudaEventElapsedTime(&taken_ms, first, last));
    return taken_ms * 1e3 / CALLS;
}

static double queued(void* from, void* to, size_t size_bytes) {
    all_gather(WARMUP, from, to, size_bytes);
    return microseconds([&] { all_gather(CALLS, from, to, size_bytes); });
}

static double replayed(void* from, void* to, size_t size_bytes) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    all_gather(CALLS, from, to, size_bytes);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&ready, graph, 0));
    CUDA(cudaGraphLaunch(ready, stream));
    CUDA(cudaStreamSynchronize(stream));
    return microseconds([&] { CUDA(cudaGraphLaunch(ready, stream)); });
}

int main(int count, char** words) {
    if (count != 2) {
        fprintf(stderr, "nccl_loop: expected one word, such as 8,1048576\n");
        return 2;
    }
    const int device = 0;
    NCCL(ncclCommInitAll(&comm, 1, &device));
    CUDA(cudaStreamCreate(&stream));
    std::string sizes = words[1];
    const char* before = "{";
    for (size_t at = 0; at < sizes.size();) {
        size_t comma = std::min(sizes.find(',', at), sizes.size());
        size_t size_bytes = std::stoull(sizes.substr(at, comma - at));
        at = comma + 1;
        void *from, *to;
        CUDA(cudaMalloc(&from, size_bytes));
        CUDA(cudaMalloc(&to, size_bytes));
        printf("%s\"%zu\": {\"queued\": %.4f, \"graph\": %.4f}", before, size_bytes, queued(from, to, size_bytes),
               replayed(from, to, size_bytes));
        CUDA(cudaFree(from));
        CUDA(cudaFree(to));
        before = ", ";
    }
    printf("}\n");
    return 0;
}
