/* wake.pml: npci_advance_word and the sleep of npci_wait_slow. The same words guard npci_request_complete and
 * npci_request_await, with a value that grows once.
 *
 * One rank advances its counter from 0 to ADVANCES; WAITERS ranks wait for each value in turn. All steps are in one
 * order, as the sequentially consistent accesses of the code are; orders.py looks at what the weaker ones may do.
 *
 * Safety: nobody sleeps for ever.
 *
 * check: WAITERS=1 ADVANCES=4
 * check: WAITERS=2 ADVANCES=3
 * check: WAITERS=3 ADVANCES=2
 * fails: BUG_LOOK_BEFORE_ANNOUNCING WAITERS=1 ADVANCES=1: stuck
 * fails: BUG_ASK_BEFORE_ADVANCING WAITERS=1 ADVANCES=1: stuck
 * fails: BUG_NO_COMPARE WAITERS=1 ADVANCES=1: stuck
 * fails: BUG_WAKE_ONE WAITERS=2 ADVANCES=1: stuck
 * fails: BUG_FLAG WAITERS=2 ADVANCES=2: stuck */

#define THREADS WAITERS
#include "futex.h"

byte value, waiters;

proctype waiter(byte me) {
    byte target, seen;
    do
    :: target < ADVANCES ->
        target++;
        do
        :: value >= target -> break
        :: value < target ->
#if defined(BUG_LOOK_BEFORE_ANNOUNCING)
            seen = value;
            waiters++;
#elif defined(BUG_FLAG)
            /* A flag instead of a number: who wakes first takes away the announcements of the others. */
            waiters = 1;
            seen = value;
#else
            waiters++;
            seen = value;
#endif
            if
            :: seen < target -> FUTEX_WAIT(value, seen)
            :: else
            fi;
            seen = 0;
#ifdef BUG_FLAG
            waiters = 0
#else
            waiters--
#endif
        od
    :: else -> break
    od
}

proctype advancer() {
    byte woken;
    do
    :: value < ADVANCES ->
#ifdef BUG_ASK_BEFORE_ADVANCING
        if
        :: waiters != 0 -> value++; futex_wake_all()
        :: else -> value++
        fi
#else
        value++;
        if
        :: waiters != 0 ->
#ifdef BUG_WAKE_ONE
            d_step {
                do
                :: woken < THREADS && !asleep[woken] -> woken++
                :: else -> break
                od;
                if
                :: woken < THREADS -> asleep[woken] = false
                :: else
                fi;
                woken = 0
            }
#else
            futex_wake_all()
#endif
        :: else
        fi
#endif
    :: else -> break
    od
}

init {
    atomic {
        byte w;
        do
        :: w < WAITERS -> run waiter(w); w++
        :: else -> break
        od;
        run advancer()
    }
}
