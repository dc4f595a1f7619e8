/* lock.pml: npci_table_lock and npci_table_unlock, a futex mutex (Drepper, "Futexes Are Tricky") whose word holds the
 * holder's rank.
 *
 * Each rank takes the lock ROUNDS times. The spinning before the first sleep is left out, as it only tries again.
 *
 * Safety: one rank at a time is inside. Nobody sleeps for ever.
 *
 * check: RANKS=2 ROUNDS=3
 * check: RANKS=3 ROUNDS=2
 * fails: BUG_TAKEN_UNMARKED RANKS=3 ROUNDS=1: stuck
 * fails: BUG_SLEEP_UNMARKED RANKS=2 ROUNDS=1: stuck
 * fails: BUG_NO_COMPARE RANKS=2 ROUNDS=1: stuck
 * fails: BUG_TAKE_WITHOUT_COMPARING RANKS=2 ROUNDS=2: assertion */

#define THREADS RANKS
#include "futex.h"

#define CONTENDED 128

byte word, inside;

inline compare_exchange(expected, desired, worked) {
    atomic {
        if
        :: word == expected -> word = desired; worked = true
        :: else -> expected = word; worked = false
        fi
    }
}

proctype rank(byte me) {
    byte round, seen, before, woken;
    bool worked;
    do
    :: round < ROUNDS ->
        round++;
        seen = 0;
        compare_exchange(seen, me + 1, worked);
        do
        :: worked -> break
        :: !worked && seen == 0 ->
#if defined(BUG_TAKEN_UNMARKED)
            compare_exchange(seen, me + 1, worked)
#elif defined(BUG_TAKE_WITHOUT_COMPARING)
            word = me + 1 + CONTENDED;
            worked = true
#else
            compare_exchange(seen, me + 1 + CONTENDED, worked)
#endif
        :: !worked && seen != 0 ->
#ifndef BUG_SLEEP_UNMARKED
            if
            :: seen < CONTENDED ->
                compare_exchange(seen, seen + CONTENDED, worked);
                if
                :: worked -> seen = seen + CONTENDED
                :: else
                fi
            :: else -> worked = true
            fi;
#else
            worked = true;
#endif
            if
            :: worked ->
                worked = false;
                FUTEX_WAIT(word, seen);
                seen = word
            :: else
            fi
        od;
        inside++;
        assert(inside == 1);
        inside--;
        atomic { before = word; word = 0 };
        if
        :: before >= CONTENDED -> futex_wake_all()
        :: else
        fi;
        atomic { seen = 0; before = 0; worked = false }
    :: else -> break
    od
}

init {
    atomic {
        byte r;
        do
        :: r < RANKS -> run rank(r); r++
        :: else -> break
        od
    }
}
