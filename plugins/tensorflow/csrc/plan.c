/* Numbers the unnamed collectives of a graph alike on every rank, whatever order each rank created them in.
 *
 * 1. Python notes each collective of a graph here (a slot), with a text that describes it: kind, dtype, shape and more.
 * 2. When the first of them runs, all that the graph has by then are sorted by that text, collectives that are equal in
 *    it by their creation, and numbered. The number, not the description, is the key: so two ranks that disagree about
 *    a shape or a kind still meet, and learn of it at once instead of waiting for ever.
 * 3. How many equal collectives came before is part of the call's fingerprint: if one rank's graph has a collective
 *    more, which shifts the others' numbers, a call never takes the wrong one of two equals.
 * 4. Functions number theirs alike, each from 0. If one calls another, which of two calls with one number comes first is
 *    TensorFlow's choice on each rank. So the content of a function's graph is part of the fingerprint as well: a call
 *    never takes another function's, unless they hold the same.
 * 5. Collectives added to a graph after it ran are its next batch.
 * 6. A graph that came from another process (a MetaGraph, a SavedModel) has slots that mean nothing here. Its ops carry
 *    a hash of their description and occurrence as well, which then is the key. */
#include "plan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    uint64_t graph, group, content, fallback;
    char *order, *name;
    int numbered;
    uint64_t key, detail;
};
struct label {
    uint64_t key;
    char *name;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot *slots; /* slot n is slots[n - 1] */
static int32_t n_slots, room;
static struct label *labels; /* open addressing, a power of two of places */
static size_t n_labels, places;

uint64_t npt_mix(uint64_t hash, uint64_t more)
{
    /* The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
    uint64_t z = (hash ^ more) + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static struct label *find_label(uint64_t key)
{
    size_t at = npt_mix(key, 0) & (places - 1);
    while (labels[at].name != NULL && labels[at].key != key)
        at = (at + 1) & (places - 1);
    return &labels[at];
}

static int grow_labels(void)
{
    struct label *old = labels;
    size_t old_places = places, more = places != 0 ? 2 * places : 64;
    struct label *fresh = calloc(more, sizeof *fresh);
    if (fresh == NULL)
        return 0;
    labels = fresh;
    places = more;
    for (size_t i = 0; i < old_places; i++)
        if (old[i].name != NULL)
            *find_label(old[i].key) = old[i];
    free(old);
    return 1;
}

static void name_locked(uint64_t key, const char *name)
{
    if (2 * n_labels >= places && !grow_labels())
        return;
    struct label *label = find_label(key);
    if (label->name != NULL)
        return; /* Names are never replaced: a kernel may hold the pointer. */
    label->name = strdup(name);
    if (label->name == NULL)
        return;
    label->key = key;
    n_labels++;
}

void npt_plan_name(uint64_t key, const char *name)
{
    pthread_mutex_lock(&lock);
    name_locked(key, name);
    pthread_mutex_unlock(&lock);
}

int32_t npt_plan_add(uint64_t graph, uint64_t group, const char *order, uint64_t content, uint64_t fallback,
                     const char *name)
{
    int32_t result = 0;
    char *order_copy = strdup(order), *name_copy = strdup(name);
    pthread_mutex_lock(&lock);
    if (n_slots == room) {
        int32_t more = room != 0 ? 2 * room : 64;
        struct slot *fresh = realloc(slots, (size_t)more * sizeof *slots);
        if (fresh != NULL) {
            slots = fresh;
            room = more;
        }
    }
    if (n_slots < room && order_copy != NULL && name_copy != NULL) {
        slots[n_slots] = (struct slot){.graph = graph, .group = group, .content = content, .fallback = fallback};
        slots[n_slots].order = order_copy;
        slots[n_slots].name = name_copy;
        result = ++n_slots;
        name_locked(fallback, name);
    }
    pthread_mutex_unlock(&lock);
    if (result == 0) {
        free(order_copy);
        free(name_copy);
    }
    return result;
}

static int compare(const void *left, const void *right)
{
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    int order = strcmp(slots[a].order, slots[b].order);
    return order != 0 ? order : (a > b) - (a < b);
}

/* number_batch numbers every slot of `graph` and `group` that has no number yet. */
static void number_batch(uint64_t graph, uint64_t group)
{
    int32_t *batch = malloc((size_t)n_slots * sizeof *batch);
    int32_t count = 0;
    uint64_t before = 0; /* how many an earlier batch numbered: differs between batches, equal on all ranks */
    uint64_t content = 0;
    if (batch == NULL)
        return;
    for (int32_t i = 0; i < n_slots; i++) {
        if (slots[i].graph != graph)
            continue;
        content += slots[i].content; /* a sum: ranks create them in different orders */
        if (slots[i].group != group)
            continue;
        if (slots[i].numbered)
            before++;
        else
            batch[count++] = i;
    }
    qsort(batch, (size_t)count, sizeof *batch, compare);
    uint64_t equal = 0;
    for (int32_t i = 0; i < count; i++) {
        struct slot *slot = &slots[batch[i]];
        equal = i > 0 && strcmp(slot->order, slots[batch[i - 1]].order) == 0 ? equal + 1 : 0;
        uint64_t key = npt_mix(npt_mix(group, before), (uint64_t)i);
        slot->key = key != 0 ? key : 1; /* 0 would mean the next call number */
        slot->detail = npt_mix(npt_mix(before, equal), content);
        slot->numbered = 1;
    }
    free(batch);
}

struct npt_match npt_plan_match(int32_t slot, uint64_t fallback)
{
    struct npt_match match = {fallback, 0, NULL};
    pthread_mutex_lock(&lock);
    if (slot > 0 && slot <= n_slots && slots[slot - 1].fallback == fallback) {
        struct slot *mine = &slots[slot - 1];
        if (!mine->numbered)
            number_batch(mine->graph, mine->group);
        if (mine->numbered)
            match = (struct npt_match){mine->key, mine->detail, mine->name};
    } else if (places != 0 && fallback != 0) {
        match.name = find_label(fallback)->name;
    }
    pthread_mutex_unlock(&lock);
    return match;
}
