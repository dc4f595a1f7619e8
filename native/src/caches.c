/* caches.c: how large the caches of this machine's processors are. */
#include "npci_comm.h"

#include <sched.h>
#include <stdio.h>

/* What a processor has where the kernel does not tell. */
#define NPCI_LEVEL2 ((size_t)1 << 20)
#define NPCI_LEVEL3 ((size_t)32 << 20)
#define NPCI_CACHES 8

static bool npci_cache_read(int index, const char *what, char *text, size_t room) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, what);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool found = fgets(text, (int)room, file) != NULL;
    fclose(file);
    return found;
}

/* npci_cache_bytes reads `1024K` or `32M`; 0 where it is neither. */
static size_t npci_cache_bytes(const char *text) {
    unsigned long number = 0;
    char unit = '\0';
    if (sscanf(text, "%lu%c", &number, &unit) < 1)
        return 0;
    return (size_t)number << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

/* npci_cache_sharers counts the processors of a list such as `0-3,8-11`. */
static int npci_cache_sharers(const char *list) {
    int total = 0, first, last, used;
    while (sscanf(list, "%d%n", &first, &used) == 1) {
        last = first;
        list += used;
        if (sscanf(list, "-%d%n", &last, &used) == 1)
            list += used;
        total += last >= first ? last - first + 1 : 0;
        list += *list == ',' ? 1 : 0;
    }
    return total > 0 ? total : 1;
}

npci_caches npci_caches_find(void) {
    npci_caches caches = {.level2 = NPCI_LEVEL2, .level3 = NPCI_LEVEL3, .sharers = npci_cores()};
    char text[512];
    for (int i = 0; i < NPCI_CACHES; i++) {
        int level = npci_cache_read(i, "level", text, sizeof text) ? atoi(text) : 0;
        size_t bytes = level >= 2 && npci_cache_read(i, "size", text, sizeof text) ? npci_cache_bytes(text) : 0;
        if (bytes == 0)
            continue;
        if (level == 2)
            caches.level2 = bytes;
        if (level >= 3) {
            caches.level3 = bytes;
            if (npci_cache_read(i, "shared_cpu_list", text, sizeof text))
                caches.sharers = npci_cache_sharers(text);
        }
    }
    return caches;
}
