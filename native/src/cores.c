/* cores.c: how many processors this process may use. */
#include "npci_comm.h"

#include <sched.h>
#include <stdio.h>

#define NPCI_CGROUPS "/sys/fs/cgroup"

/* npci_quota_in reads the limit of one group of processes in whole processors, or 0 where there is none. The older kind
 * of groups has the quota and the period in two files. */
static int npci_quota_in(const char *directory, bool old) {
    char path[600];
    long long quota = 0, period = 100000;
    snprintf(path, sizeof path, "%s/%s", directory, old ? "cpu.cfs_quota_us" : "cpu.max");
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    int found = fscanf(file, "%lld %lld", &quota, &period); /* "max" is no number, and -1 no limit */
    fclose(file);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    file = old ? fopen(path, "re") : NULL;
    if (file != NULL) {
        found += fscanf(file, "%lld", &period);
        fclose(file);
    }
    return found >= 1 && quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

/* npci_quota_of gives the least limit of a group and those around it, or 0. `path` begins with a slash. */
static int npci_quota_of(const char *path, bool old) {
    const char *root = old ? NPCI_CGROUPS "/cpu" : NPCI_CGROUPS;
    char directory[512];
    int least = 0, length = snprintf(directory, sizeof directory, "%s%s", root, path);
    if (length >= (int)sizeof directory)
        return 0;
    for (;;) {
        int quota = npci_quota_in(directory, old);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
        char *end = strrchr(directory, '/');
        if (end == NULL || end < directory + strlen(root))
            return least;
        *end = '\0';
    }
}

/* npci_quota gives the limit for this process in whole processors, or 0. A line of the file is number:controllers:path;
 * the newer kind of groups has the number 0 and no controllers. */
static int npci_quota(void) {
    char line[600];
    int least = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *path++ = '\0';
        bool old = strcmp(names, ":cpu") == 0 || strncmp(names, ":cpu,", 5) == 0;
        int quota = old || strcmp(line, "0:") == 0 ? npci_quota_of(path, old) : 0;
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
    }
    if (file != NULL)
        fclose(file);
    return least;
}

int npci_cores(void) {
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = npci_quota();
    return quota > 0 && quota < cores ? quota : cores;
}
