/* lend.pml: inputs that others read where they lie (lend.c), and results that all ranks write into (allreduce.c).
 *
 * Ranks make CALLS calls. Each chooses freely whether it lends its input. A call begins with a meeting (a barrier
 * in one step here; see meet.pml). `input` is what a rank's array holds: the number of the call that it is for,
 * plus one; a program writes the next call's input as soon as its call has returned. Kind `exchange` is allgather,
 * alltoall, reduce_scatter, broadcast and scatter, which end with npci_lend_end. Kind `sweep` is an allreduce whose
 * results are written where they belong: all ranks read all inputs, write their slice of each rank's output, and
 * leave when all have reduced.
 *
 * With FAILURES a rank that waits may give up at any time, which ends the communicator. Its program may then write
 * its array too (here: a 0). The others may fail, but must not return success with what they read there.
 *
 * Safety: a call that returns success has read the inputs of this call, and finds all slices of its result in its
 * output.
 *
 * check: RANKS=2 CALLS=3
 * check: RANKS=3 CALLS=2
 * check: RANKS=3 CALLS=1 FAILURES
 * fails: BUG_LENDER_LEAVES RANKS=2 CALLS=2: assertion
 * fails: BUG_DRAINED_EARLY RANKS=2 CALLS=2: assertion
 * fails: BUG_NO_LAST_WAIT RANKS=2 CALLS=2: assertion
 * fails: BUG_NO_LAST_LOOK RANKS=3 CALLS=1 FAILURES: assertion */

mtype = { exchange, sweep };

mtype kind[CALLS];
bool chosen;

byte arrived[CALLS];
bool lends[2 * RANKS]; /* the asides, doubled as the cells are */
byte input[RANKS], output[RANKS * RANKS]; /* output: of a rank, by slice */
byte reduced[RANKS], drained[RANKS];
bool ended;

#define ASIDE(r) (call % 2 * RANKS + (r))
#define PEER(i) ((me + (i)) % RANKS)

#ifdef FAILURES
#define GIVE_UP(condition) :: atomic { (condition) -> ended = true; goto failed }
#else
#define GIVE_UP(condition)
#endif

#define WAIT_ALL(counter, target)                                                                                     \
    i = 1;                                                                                                            \
    do                                                                                                                \
    :: atomic { i < RANKS && counter[PEER(i)] >= (target) -> i++ }                                                    \
    :: atomic { i == RANKS -> i = 0; break }                                                                          \
    GIVE_UP(i < RANKS && counter[PEER(i)] < (target))                                                                 \
    od

/* One's own input is read like the others'; those that are not lent come through staging memory: see ring.pml. */
#define READ_LENT                                                                                                     \
    i = 1;                                                                                                            \
    do                                                                                                                \
    :: atomic { i < RANKS -> good = good && (!lent[PEER(i)] || input[PEER(i)] == call + 1); i++ }                     \
    :: atomic { i == RANKS -> i = 0; break }                                                                          \
    od

proctype rank(byte me) {
    byte call, i;
    bool good, lent[RANKS];
    chosen;
    do
    :: call < CALLS ->
        good = true;
        input[me] = call + 1;
        i = 0;
        do
        :: atomic { i < RANKS -> output[me * RANKS + i] = 0; i++ }
        :: atomic { i == RANKS -> i = 0; break }
        od;
        if
        :: lends[ASIDE(me)] = true
        :: lends[ASIDE(me)] = false
        fi;
        arrived[call]++;
        if
        :: arrived[call] == RANKS
        GIVE_UP(arrived[call] < RANKS)
        fi;
        atomic {
            i = 0;
            do
            :: i < RANKS -> lent[i] = lends[ASIDE(i)]; i++
            :: else -> i = 0; break
            od
        };
        if
        :: kind[call] == exchange ->
#ifdef BUG_DRAINED_EARLY
            drained[me] = call + 1;
            READ_LENT;
#else
            READ_LENT;
            drained[me] = call + 1;
#endif
#ifndef BUG_LENDER_LEAVES
            if
            :: lent[me] -> WAIT_ALL(drained, call + 1)
            :: else
            fi
#endif
        :: kind[call] == sweep ->
            READ_LENT;
            i = 0;
            do
            :: atomic { i < RANKS -> output[i * RANKS + me] = call + 1; i++ }
            :: atomic { i == RANKS -> i = 0; break }
            od;
            reduced[me] = call + 1;
#ifndef BUG_NO_LAST_WAIT
            WAIT_ALL(reduced, call + 1);
#endif
            i = 0;
            do
            :: atomic { i < RANKS -> good = good && output[me * RANKS + i] == call + 1; i++ }
            :: atomic { i == RANKS -> i = 0; break }
            od
        fi;
        /* npci_run evens the counters out. */
        reduced[me] = call + 1;
        drained[me] = call + 1;
#if defined(FAILURES) && !defined(BUG_NO_LAST_LOOK)
        if
        :: ended -> goto failed
        :: else
        fi;
#endif
        assert(good);
        call++
    :: else -> goto finished
    od;
#ifdef FAILURES
failed:
    input[me] = 0;
#endif
finished:
    skip
}

init {
    byte n, r;
    atomic {
        do
        :: n < CALLS ->
            if
            :: kind[n] = exchange
            :: kind[n] = sweep
            fi;
            n++
        :: else -> break
        od;
        do
        :: r < RANKS -> run rank(r); r++
        :: else -> break
        od;
        chosen = true
    }
}
