/* Moves TensorFlow's done-callback out of the frame that it would die with.
 *
 * 1. An asynchronous kernel gets `done`, the address of a std::function<void()> that lives in its caller's frame, where
 *    it is destroyed when the compute function returns. We call it later, from the engine's thread.
 * 2. So we move it out while we are still inside: libstdc++ (which every Linux wheel of TensorFlow is built with) keeps
 *    it as 16 bytes of functor, a manager and an invoker. A function whose manager is NULL is empty; that is what is
 *    left behind, as C++'s own move does.
 * 3. Another C++ library would lay it out differently. Before we believe the layout, both pointers must lie in one of
 *    TensorFlow's own libraries; if not, the caller falls back to a kernel that waits. */
#define _GNU_SOURCE
#include "done.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { DESTROY = 3 }; /* of libstdc++'s _Manager_operation */

/* TensorFlow has a handful of places that make such callbacks; those that passed the test once are kept here. */
enum { KNOWN = 16 };
static _Atomic(uintptr_t) known[KNOWN];

static atomic_bool refused;

void npt_done_refuse(bool yes)
{
    atomic_store(&refused, yes);
}

static bool in_tensorflow(uintptr_t address)
{
    Dl_info info;
    if (address == 0 || dladdr((void *)address, &info) == 0 || info.dli_fname == NULL)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    return strstr(slash != NULL ? slash : info.dli_fname, "tensorflow") != NULL;
}

static bool believable(const struct npt_done *done)
{
    uintptr_t manager, invoker;
    memcpy(&manager, &done->manager, sizeof manager);
    memcpy(&invoker, &done->invoker, sizeof invoker);
    /* Both vary together, so their sum stands for the pair. Relaxed: an entry is a hint, never data. */
    uintptr_t pair = manager + 31 * invoker;
    for (int i = 0; i < KNOWN; i++)
        if (atomic_load_explicit(&known[i], memory_order_relaxed) == pair)
            return true;
    if (!in_tensorflow(manager) || !in_tensorflow(invoker))
        return false;
    for (int i = 0; i < KNOWN; i++) {
        uintptr_t empty = 0;
        if (atomic_compare_exchange_strong_explicit(&known[i], &empty, pair, memory_order_relaxed,
                                                    memory_order_relaxed))
            break;
    }
    return true;
}

bool npt_done_take(struct npt_done *done, void *source)
{
    struct npt_done *theirs = source;
    if (atomic_load_explicit(&refused, memory_order_relaxed) || !believable(theirs))
        return false;
    memcpy(done, theirs, sizeof *done);
    memset(&theirs->manager, 0, sizeof theirs->manager);
    memset(&theirs->invoker, 0, sizeof theirs->invoker);
    return true;
}

void npt_done_run(struct npt_done *done)
{
    struct npt_done mine = *done;
    mine.invoker(mine.functor);
    mine.manager(mine.functor, mine.functor, DESTROY);
}
