/* bell.pml: npci_bell_ring, npci_bell_read and npci_bell_sleep, as keyed.c and mail.c use them.
 *
 * RINGERS threads each do WORKS pieces of work and ring. The sleeper reads the bell's event, looks for work, and
 * sleeps only while the event has not changed.
 *
 * Safety: the sleeper takes all work; it never sleeps while there is some and nobody will ring.
 *
 * check: RINGERS=1 WORKS=4
 * check: RINGERS=2 WORKS=2
 * check: RINGERS=3 WORKS=1
 * fails: BUG_WORK_BEFORE_READING RINGERS=1 WORKS=1: stuck
 * fails: BUG_RING_BEFORE_WORK RINGERS=1 WORKS=1: stuck
 * fails: BUG_ANNOUNCE_AFTER_LOOKING RINGERS=1 WORKS=1: stuck
 * fails: BUG_NO_COMPARE RINGERS=1 WORKS=1: stuck
 * fails: BUG_ASK_BEFORE_RINGING RINGERS=1 WORKS=1: stuck */

#define THREADS 1
#include "futex.h"

byte event, sleepers;
byte work;

inline ring() {
#ifdef BUG_ASK_BEFORE_RINGING
    if
    :: sleepers != 0 -> event++; futex_wake_all()
    :: else -> event++
    fi
#else
    event++;
    if
    :: sleepers != 0 -> futex_wake_all()
    :: else
    fi
#endif
}

proctype sleeper() {
    byte me = 0, taken, seen;
    do
    :: taken < RINGERS * WORKS ->
#ifndef BUG_WORK_BEFORE_READING
        seen = event;
#endif
        if
        :: work > 0 -> atomic { work--; taken++ }
        :: work == 0 ->
#ifdef BUG_WORK_BEFORE_READING
            seen = event;
#endif
#ifdef BUG_ANNOUNCE_AFTER_LOOKING
            if
            :: event == seen -> sleepers++; FUTEX_WAIT(event, seen)
            :: else -> sleepers++
            fi;
#else
            sleepers++;
            if
            :: event == seen -> FUTEX_WAIT(event, seen)
            :: else
            fi;
#endif
            sleepers--
        fi;
        seen = 0
    :: else -> break
    od
}

proctype ringer() {
    byte done, woken;
    do
    :: done < WORKS ->
        done++;
#ifdef BUG_RING_BEFORE_WORK
        ring();
        work++
#else
        work++;
        ring()
#endif
    :: else -> break
    od
}

init {
    atomic {
        byte r;
        run sleeper();
        do
        :: r < RINGERS -> run ringer(); r++
        :: else -> break
        od
    }
}
