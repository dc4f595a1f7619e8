/* futex.h: the kernel's part. A sleep compares and falls asleep in one step and, unlike the engine's slices of 50
 * ms, ends only by a wake: so a lost wake-up leaves a process stuck, which the verifier reports. Wake-ups without a
 * reason are left out, as they could hide that. A model sets THREADS, and `me` is the number of the thread. */
bool asleep[THREADS];

#ifdef BUG_NO_COMPARE
#define FUTEX_WAIT(word, seen) asleep[me] = true; !asleep[me]
#else
#define FUTEX_WAIT(word, seen)                                                                                        \
    atomic {                                                                                                          \
        if                                                                                                            \
        :: (word) == (seen) -> asleep[me] = true                                                                      \
        :: else                                                                                                       \
        fi                                                                                                            \
    };                                                                                                                \
    !asleep[me]
#endif

/* Sleepers on one word in the model: all of them wake. */
inline futex_wake_all() {
    d_step {
        woken = 0;
        do
        :: woken < THREADS -> asleep[woken] = false; woken++
        :: else -> break
        od;
        woken = 0
    }
}
