// A driver of two GPUs, NVRTC, cuBLASLt and NCCL without a GPU, for what no test can do to real ones: that they are lost, or cannot meet. Found in
// LD_LIBRARY_PATH.
//
// Memory is the host's, kernels do nothing, and what was queued takes 2 ms, so that requests run for a while; all tokens are 0. While the file that
// QUIRE_TEST_LOST names exists, every call fails as with a GPU that fell off the bus, and processes that start find none. While the one that
// QUIRE_TEST_HANG names exists, nothing that was queued is ever done.
//
// Where QUIRE_TEST_HOPPER names a folder the GPUs are Hopper's. There a file tells of each kernel that was `compiled` or `launched`, and until there is a
// file `go`, kernels that no request needs are being compiled.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long address;
enum { OK = 0, NO_DEVICE = 100, UNAVAILABLE = 46, NOT_READY = 600 };
static char something[64];

static int state(void) {
    const char *lost = getenv("QUIRE_TEST_LOST");
    return lost && access(lost, F_OK) == 0 ? UNAVAILABLE : OK;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int hangs(void) {
    const char *hang = getenv("QUIRE_TEST_HANG");
    return hang && access(hang, F_OK) == 0;
}

static int done(double at) {
    while (hangs()) usleep(1000);
    for (double left; (left = at - now()) > 0;) usleep((useconds_t)(left * 1e6) + 1);
    return state();
}

static int is_hopper(void) { return getenv("QUIRE_TEST_HOPPER") != NULL; }

// The path of a file in the folder.
static const char *place(char *path, size_t room, const char *what, const char *name) {
    snprintf(path, room, "%s/%s%s", getenv("QUIRE_TEST_HOPPER"), what, name);
    return path;
}

static void note(const char *what, const char *name) {
    char path[4096];
    if (is_hopper()) close(open(place(path, sizeof path, what, name), O_CREAT | O_WRONLY, 0600));
}

// The driver.
int cuInit(unsigned flags) { return state() ? NO_DEVICE : OK; }
int cuDriverGetVersion(int *version) { return *version = is_hopper() ? 12080 : 12000, OK; }
int cuDeviceGetCount(int *count) { return *count = 2, state(); }
int cuDeviceGet(int *device, int number) { return *device = number, state(); }
int cuDeviceGetName(char *name, int room, int device) { return strncpy(name, "pretended", (size_t)room), state(); }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
        case 16: *value = is_hopper() ? 132 : 4; break;  // multiprocessors
        case 75: *value = is_hopper() ? 9 : 7; break;  // compute capability
        case 76: *value = is_hopper() ? 0 : 5; break;
        case 81: *value = (is_hopper() ? 228 : 64) << 10; break;  // shared memory of a multiprocessor
        case 97: *value = (is_hopper() ? 227 : 64) << 10; break;  // and of a block
        default: *value = 4;
    }
    return state();
}
int cuDevicePrimaryCtxRetain(handle *context, int device) { return *context = something, state(); }
int cuDevicePrimaryCtxRelease_v2(int device) { return state(); }
int cuCtxSetCurrent(handle context) { return state(); }
int cuCtxGetCurrent(handle *context) { return *context = something, state(); }
int cuMemGetInfo_v2(size_t *unused, size_t *total) { return *unused = 2ul << 30, *total = 4ul << 30, state(); }
int cuMemAlloc_v2(address *memory, size_t bytes) { return *memory = (address)calloc(1, bytes), state(); }
int cuMemFree_v2(address memory) { return free((void *)memory), state(); }
int cuMemHostAlloc(handle *memory, size_t bytes, unsigned flags) { return *memory = calloc(1, bytes), state(); }
int cuMemFreeHost(handle memory) { return free(memory), state(); }
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, handle stream) { return memcpy((void *)to, from, bytes), state(); }
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, handle stream) { return memcpy(to, (void *)from, bytes), state(); }
int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, handle stream) { return memmove((void *)to, (void *)from, bytes), state(); }
int cuMemsetD8Async(address memory, unsigned char byte, size_t bytes, handle stream) { return memset((void *)memory, byte, bytes), state(); }
int cuStreamCreate(handle *stream, unsigned flags) { return *stream = something, state(); }
int cuStreamCreateWithPriority(handle *stream, unsigned flags, int priority) { return *stream = something, state(); }
int cuStreamDestroy_v2(handle stream) { return state(); }
int cuStreamSynchronize(handle stream) { return state(); }
int cuEventCreate(handle *event, unsigned flags) { return *event = calloc(1, sizeof(double)), state(); }
int cuEventDestroy_v2(handle event) { return free(event), state(); }
int cuEventRecord(handle event, handle stream) { return *(double *)event = now() + 2e-3, state(); }
int cuEventQuery(handle event) { return hangs() || *(double *)event > now() ? NOT_READY : state(); }
int cuEventSynchronize(handle event) { return done(*(double *)event); }
int cuEventElapsedTime_v2(float *millis, handle start, handle end) {
    return *millis = (float)(*(double *)end - *(double *)start) * 1e3f, state();
}
int cuStreamWaitEvent(handle stream, handle event, unsigned flags) { return state(); }
int cuStreamBeginCapture_v2(handle stream, int mode) { return state(); }
int cuStreamEndCapture(handle stream, handle *graph) { return *graph = something, state(); }
int cuGraphInstantiateWithFlags(handle *executable, handle graph, unsigned long long flags) { return *executable = something, state(); }
int cuGraphUpload(handle executable, handle stream) { return state(); }
int cuGraphLaunch(handle executable, handle stream) { return note("launched-", "graph"), state(); }
int cuGraphDestroy(handle graph) { return state(); }
int cuGraphExecDestroy(handle executable) { return state(); }
int cuModuleLoadData(handle *module, const void *code) { return *module = something, state(); }
int cuModuleUnload(handle module) { return state(); }
int cuModuleGetFunction(handle *function, handle module, const char *name) { return *function = strdup(name), state(); }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, handle function, int threads, size_t shared) { return *blocks = 1, state(); }
int cuOccupancyMaxActiveClusters(int *clusters, handle function, const void *config) { return *clusters = 8, state(); }
int cuTensorMapEncodeTiled(handle map, int type, unsigned rank, handle memory, const void *sizes, const void *strides, const void *box,
                           const void *steps, int interleave, int swizzle, int promotion, int fill) { return state(); }
int cuFuncSetAttribute(handle function, int attribute, int value) { return state(); }
int cuFuncGetAttribute(int *value, int attribute, handle function) { return *value = 0, state(); }
int cuLaunchKernel(handle function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, handle stream,
                   void **arguments, void **more) { return state(); }
int cuLaunchKernelEx(const void *config, handle function, void **arguments, void **more) { return note("launched-", function), state(); }
int cuGetErrorName(int error, const char **name) {
    return *name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_DEVICE_UNAVAILABLE", OK;
}
int cuGetErrorString(int error, const char **words) { return *words = "the pretended GPU is lost", OK; }

// NVRTC.
int nvrtcVersion(int *major, int *minor) { return *major = 12, *minor = 0, OK; }
int nvrtcGetNumSupportedArchs(int *count) { return *count = 2, OK; }
int nvrtcGetSupportedArchs(int *archs) { return archs[0] = 75, archs[1] = 90, OK; }
int nvrtcCreateProgram(handle *program, const char *code, const char *name, int count, const void *headers, const void *names) {
    return *program = strdup(name), OK;
}
int nvrtcCompileProgram(handle program, int count, const void *options) {
    char path[4096];
    while (is_hopper() && strcmp(program, "whole_step.cu") == 0 && access(place(path, sizeof path, "go", ""), F_OK) != 0)
        usleep(1000);
    return note("compiled-", program), OK;
}
int nvrtcGetCUBINSize(handle program, size_t *bytes) { return *bytes = sizeof something, OK; }
int nvrtcGetCUBIN(handle program, char *code) { return memset(code, 1, sizeof something), OK; }
int nvrtcDestroyProgram(handle *program) { return free(*program), OK; }
const char *nvrtcGetErrorString(int error) { return "never"; }

// NCCL, whose ranks never meet.
struct group_id {
    char bytes[128];
};
int ncclGetVersion(int *version) { return *version = 22809, OK; }
int ncclGetUniqueId(char *id) { return memset(id, 1, 128), OK; }
int ncclCommInitRank(handle *group, int size, struct group_id id, int rank) { return 2; }
int ncclAllReduce(void) { return 2; }
int ncclAllGather(void) { return 2; }
int ncclSend(void) { return 2; }
int ncclRecv(void) { return 2; }
int ncclCommAbort(handle group) { return OK; }
const char *ncclGetErrorString(int error) { return "unhandled system error"; }

// cuBLASLt: knows no way to multiply, so that the backend takes its own kernels.
int cublasLtCreate(handle *library) { return *library = something, OK; }
int cublasLtDestroy(handle library) { return OK; }
size_t cublasLtGetVersion(void) { return 120000; }
int cublasLtMatmulDescCreate(handle *product, int compute, int scale) { return *product = something, OK; }
int cublasLtMatmulDescDestroy(handle product) { return OK; }
int cublasLtMatmulDescSetAttribute(handle product, int attribute, const void *value, size_t bytes) { return OK; }
int cublasLtMatrixLayoutCreate(handle *layout, int type, address rows, address cols, long long stride) { return *layout = something, OK; }
int cublasLtMatrixLayoutDestroy(handle layout) { return OK; }
int cublasLtMatrixLayoutSetAttribute(handle layout, int attribute, const void *value, size_t bytes) { return OK; }
int cublasLtMatmulPreferenceCreate(handle *wishes) { return *wishes = something, OK; }
int cublasLtMatmulPreferenceDestroy(handle wishes) { return OK; }
int cublasLtMatmulPreferenceSetAttribute(handle wishes, int attribute, const void *value, size_t bytes) { return OK; }
int cublasLtMatmulAlgoGetHeuristic(handle library, handle product, handle a, handle b, handle c, handle d, handle wishes, int most,
                                   void *results, int *found) {
    return *found = 0, 15;
}
