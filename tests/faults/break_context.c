// Preloaded into a worker: faults that GPUs have, made for real.
//
// On SIGUSR1 a kernel traps in the process's own CUDA context, which the driver then gives up; or, with QUIRE_TEST_SPIN set, one spins for ever
// on every multiprocessor. And while the file that QUIRE_TEST_LOST names exists, processes that start find no GPU, as after one that fell off
// the bus.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char source[] =
    "extern \"C\" __global__ void trap_now() { asm volatile(\"trap;\"); }"
    "extern \"C\" __global__ void spin() { for (;;) asm volatile(\"nanosleep.u32 1000;\"); }";

// Blocks of a kernel that leaves no multiprocessor to another: more than any GPU has.
enum { BLOCKS = 4096, THREADS = 1024 };

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "break_context: no %s\n", name);
    return found;
}

#define CALL(library, name, types, ...)                                       \
    do {                                                                      \
        int(*call) types = (int(*) types)function(library, name);            \
        int result = call ? call(__VA_ARGS__) : -1;                           \
        if (result) return (void)fprintf(stderr, "break_context: %s gave %d\n", name, result); \
    } while (0)

static void break_context(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *context = 0, *module = 0, *kernel = 0, *program = 0;
    if (!cuda) return (void)fprintf(stderr, "break_context: no driver in this process\n");
    int count = 0, device = 0, major = 0, minor = 0;
    CALL(cuda, "cuDeviceGetCount", (int *), &count);
    for (int active = 0; device < count; device++) {
        unsigned flags;
        CALL(cuda, "cuDevicePrimaryCtxGetState", (int, unsigned *, int *), device, &flags, &active);
        if (active) break;
    }
    CALL(cuda, "cuDeviceGetAttribute", (int *, int, int), &major, 75, device);
    CALL(cuda, "cuDeviceGetAttribute", (int *, int, int), &minor, 76, device);
    char arch[64];
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d", major, minor);
    const char *options[] = {arch};
    CALL(RTLD_DEFAULT, "nvrtcCreateProgram", (void **, const char *, const char *, int, void *, void *), &program, source,
         "trap.cu", 0, 0, 0);
    CALL(RTLD_DEFAULT, "nvrtcCompileProgram", (void *, int, const char **), program, 1, options);
    size_t size = 0;
    CALL(RTLD_DEFAULT, "nvrtcGetCUBINSize", (void *, size_t *), program, &size);
    char *cubin = malloc(size);
    CALL(RTLD_DEFAULT, "nvrtcGetCUBIN", (void *, char *), program, cubin);
    CALL(cuda, "cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    CALL(cuda, "cuCtxSetCurrent", (void *), context);
    CALL(cuda, "cuModuleLoadData", (void **, const void *), &module, cubin);
    int spins = getenv("QUIRE_TEST_SPIN") != 0;
    CALL(cuda, "cuModuleGetFunction", (void **, void *, const char *), &kernel, module, spins ? "spin" : "trap_now");
    CALL(cuda, "cuLaunchKernel",
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), kernel,
         spins ? BLOCKS : 1, 1, 1, spins ? THREADS : 1, 1, 1, 0, 0, 0, 0);
}

static void *wait_for_signal(void *signals) {
    int signal;
    while (sigwait(signals, &signal) == 0) break_context();
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    static sigset_t signals;
    const char *lost = getenv("QUIRE_TEST_LOST");
    pthread_t thread;
    if (lost && access(lost, F_OK) == 0) setenv("CUDA_VISIBLE_DEVICES", "", 1);
    // Threads inherit it, so that the signal waits for the one that asks.
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, 0);
    pthread_create(&thread, 0, wait_for_signal, &signals);
}
