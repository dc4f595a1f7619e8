/* done.h: the callback with which an asynchronous kernel tells TensorFlow that it has finished. */
#ifndef NPT_DONE_H
#define NPT_DONE_H

#include <stdbool.h>

/* npt_done is a std::function<void()> of libstdc++: what it holds, and two functions that know how. */
struct npt_done {
    char functor[16];
    bool (*manager)(void *target, const void *source, int operation);
    void (*invoker)(const void *functor);
};

/* npt_done_take moves the callback at `source` to `done`. It returns false, and moves nothing, where what lies at
 * `source` does not look like one; then the kernel must finish before it returns. For compute functions only. */
bool npt_done_take(struct npt_done *done, void *source);

/* npt_done_refuse makes npt_done_take return false, or no longer. */
void npt_done_refuse(bool yes);

/* npt_done_run calls the callback and ends it. The kernel's context may be gone when it returns. Any thread. */
void npt_done_run(struct npt_done *done);

#endif
