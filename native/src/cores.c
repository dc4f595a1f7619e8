/* cores.c: how many processors this process may use. */
#include "npci_comm.h"

#include <sched.h>
#include <stdio.h>

/* npci_quota reads a container's limit in whole cores, or 0. */
static int npci_quota(void) {
    long long quota = 0, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file != NULL) {
        int found = fscanf(file, "%lld %lld", &quota, &period); /* "max" is no number */
        fclose(file);
        return found == 2 && quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
    }
    file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re");
    if (file == NULL)
        return 0;
    int found = fscanf(file, "%lld", &quota);
    fclose(file);
    return found == 1 && quota > 0 ? (int)((quota + 99999) / 100000) : 0;
}

int npci_cores(void) {
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = npci_quota();
    return quota > 0 && quota < cores ? quota : cores;
}
