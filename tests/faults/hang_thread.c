// Preloaded into a worker: on SIGUSR1 its compute thread goes into a function that never returns.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void hang(int signal) {
    for (;;) pause();
}

static int is_compute(const char *task) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int is = fgets(name, sizeof name, file) && strcmp(name, "compute\n") == 0;
    fclose(file);
    return is;
}

static void hang_compute(void) {
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return;
    for (struct dirent *task; (task = readdir(tasks));)
        if (is_compute(task->d_name)) syscall(SYS_tgkill, getpid(), atoi(task->d_name), SIGUSR2);
    closedir(tasks);
}

static void *wait_for_signal(void *signals) {
    int signal;
    while (sigwait(signals, &signal) == 0) hang_compute();
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    static sigset_t signals;
    pthread_t thread;
    signal(SIGUSR2, hang);
    // Threads inherit it, so that the signal waits for the one that asks.
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, 0);
    pthread_create(&thread, 0, wait_for_signal, &signals);
}
