/* ring.pml: the staging ring of one lane. It is used by allreduce.c (and reduce to a root), by broadcast.c and
 * scatter.c, and by the exchanges of reduce_scatter.c, allgather.c and alltoall.c; npci_run evens the counters out.
 *
 * All ranks make the same CALLS calls. Their kinds, roots and numbers of rounds are chosen freely beforehand. Each
 * call begins with a meeting (a barrier in one step here; see meet.pml). Beside each ring slot a ghost says which
 * round, plus one, it was written for: `input_of` are a rank's inputs for the others, `result_of` is the slice that
 * it has reduced. Staging may overwrite any part of the slot's earlier result, as the slices of a call's last chunk
 * lie elsewhere. Reading and writing are one step each; as others can take steps before and after, every overlap is
 * among the runs.
 *
 * With FAILURES a rank that waits may give up at any time (deadline, interrupt, close, a dead peer), which ends the
 * communicator: it makes no more calls, and the others go on until they wait in vain and give up too. A rank that
 * dies is one that takes no more steps, which every prefix of a run covers.
 *
 * Safety: a slot is read only with the contents of the reader's own round. Without failures no rank is stuck.
 *
 * check: RANKS=2 SLOTS=3 CALLS=2 ROUNDS=5
 * check: RANKS=2 SLOTS=2 CALLS=3 ROUNDS=3
 * check: RANKS=3 SLOTS=2 CALLS=2 ROUNDS=2
 * check: RANKS=3 SLOTS=2 CALLS=1 ROUNDS=3 FAILURES
 * fails: BUG_NO_DRAINED_WAIT RANKS=2 SLOTS=2 CALLS=1 ROUNDS=4: assertion
 * fails: BUG_DRAINED_TOO_FEW RANKS=2 SLOTS=2 CALLS=1 ROUNDS=4: assertion
 * fails: BUG_DRAINED_EARLY RANKS=2 SLOTS=2 CALLS=1 ROUNDS=4: assertion
 * fails: BUG_NO_STAGED_WAIT RANKS=2 SLOTS=3 CALLS=1 ROUNDS=1: assertion
 * fails: BUG_NO_REDUCED_WAIT RANKS=2 SLOTS=3 CALLS=1 ROUNDS=1: assertion
 * fails: BUG_PEER_LEFT_OUT RANKS=3 SLOTS=2 CALLS=1 ROUNDS=3: assertion
 * fails: BUG_NO_END_ADVANCE RANKS=2 SLOTS=2 CALLS=2 ROUNDS=3: stuck
 * fails: BUG_END_ADVANCE_ON_FAILURE RANKS=2 SLOTS=2 CALLS=1 ROUNDS=3 FAILURES: assertion */

mtype = { allreduce, reduce, broadcast, exchange };

mtype kind[CALLS];
byte root[CALLS], rounds[CALLS];
bool chosen;

byte arrived[CALLS];
byte staged[RANKS], reduced[RANKS], drained[RANKS]; /* the counters */
byte input_of[RANKS * SLOTS], result_of[RANKS * SLOTS];

#define SLOT(r, round) ((r) * SLOTS + (round) % SLOTS)
#define PEER(i) ((me + (i)) % RANKS)

#ifdef FAILURES
#define GIVE_UP(condition) :: atomic { (condition) -> i = 0; goto failed }
#else
#define GIVE_UP(condition)
#endif

#define WAIT(condition)                                                                                               \
    if                                                                                                                \
    :: (condition)                                                                                                    \
    GIVE_UP(!(condition))                                                                                             \
    fi

#ifdef BUG_PEER_LEFT_OUT
#define PEERS (RANKS - 1)
#else
#define PEERS RANKS
#endif

/* npci_wait_all: one peer after the other. */
#define WAIT_ALL(counter, target)                                                                                     \
    i = 1;                                                                                                            \
    do                                                                                                                \
    :: atomic { i < PEERS && counter[PEER(i)] >= (target) -> i++ }                                                    \
    :: atomic { i == PEERS -> i = 0; break }                                                                          \
    GIVE_UP(i < PEERS && counter[PEER(i)] < (target))                                                                 \
    od

/* Everybody's part of a round, one rank after the other. */
#define READ_ALL(part, round)                                                                                         \
    i = 1;                                                                                                            \
    do                                                                                                                \
    :: atomic { i < RANKS -> assert(part[SLOT(PEER(i), round)] == (round) + 1); i++ }                                 \
    :: atomic { i == RANKS -> i = 0; break }                                                                          \
    od

#if defined(BUG_NO_DRAINED_WAIT)
#define WAIT_FREE(round) skip
#elif defined(BUG_DRAINED_TOO_FEW)
#define WAIT_FREE(round) WAIT_ALL(drained, (round) - SLOTS)
#else
#define WAIT_FREE(round) WAIT_ALL(drained, (round) - SLOTS + 1)
#endif

#define STAGE(round)                                                                                                  \
    WAIT_FREE(round);                                                                                                 \
    atomic { input_of[SLOT(me, round)] = (round) + 1; result_of[SLOT(me, round)] = 0 }                                \
    staged[me] = (round) + 1

#ifdef BUG_NO_STAGED_WAIT
#define WAIT_STAGED(wait) skip
#else
#define WAIT_STAGED(wait) wait
#endif

proctype rank(byte me) {
    byte call, base, k, i;
    chosen;
    do
    :: call < CALLS ->
        arrived[call]++;
        WAIT(arrived[call] == RANKS);
        do
        :: kind[call] == broadcast && k < rounds[call] && me == root[call] ->
            STAGE(base + k);
            k++
        :: kind[call] == broadcast && k < rounds[call] && me != root[call] ->
            WAIT_STAGED(WAIT(staged[root[call]] >= base + k + 1));
            assert(input_of[SLOT(root[call], base + k)] == base + k + 1);
            drained[me] = base + k + 1;
            k++
        :: kind[call] == exchange && k <= rounds[call] ->
            if
            :: k < rounds[call] -> STAGE(base + k)
            :: else
            fi;
            if
            :: k > 0 ->
                WAIT_STAGED(WAIT_ALL(staged, base + k));
                READ_ALL(input_of, base + k - 1);
                drained[me] = base + k
            :: else
            fi;
            k++
        :: (kind[call] == allreduce || kind[call] == reduce) && k <= rounds[call] ->
            /* npci_sweep_run */
            if
            :: k < rounds[call] -> STAGE(base + k)
            :: else
            fi;
            if
            :: k > 0 ->
#ifdef BUG_DRAINED_EARLY
                drained[me] = base + k;
#endif
                if
                :: kind[call] == allreduce || me == root[call] ->
#ifndef BUG_NO_REDUCED_WAIT
                    WAIT_ALL(reduced, base + k);
#endif
                    READ_ALL(result_of, base + k - 1)
                :: else
                fi;
                drained[me] = base + k
            :: else
            fi;
            if
            :: k < rounds[call] ->
                WAIT_STAGED(WAIT_ALL(staged, base + k + 1));
                READ_ALL(input_of, base + k);
                result_of[SLOT(me, base + k)] = base + k + 1;
                reduced[me] = base + k + 1
            :: else
            fi;
            k++
        :: else -> break
        od;
        /* npci_run: what this rank had no part in counts as done. */
        base = base + rounds[call];
#ifndef BUG_NO_END_ADVANCE
        staged[me] = base;
        reduced[me] = base;
        drained[me] = base;
#endif
        k = 0;
        call++
    :: else -> goto finished
    od;
#ifdef FAILURES
failed:
#ifdef BUG_END_ADVANCE_ON_FAILURE
    base = base + rounds[call];
    staged[me] = base;
    reduced[me] = base;
    drained[me] = base;
#endif
#endif
finished:
    skip
}

/* By symmetry the first call's root is rank 0. */
init {
    byte n, r;
    atomic {
        do
        :: n < CALLS ->
            if
            :: kind[n] = allreduce
            :: kind[n] = reduce
            :: kind[n] = broadcast
            :: kind[n] = exchange
            fi;
            select(r : 1 .. ROUNDS);
            rounds[n] = r;
            if
            :: kind[n] == reduce || kind[n] == broadcast -> select(r : 0 .. (n > 0 -> RANKS - 1 : 0)); root[n] = r
            :: else
            fi;
            n++
        :: else -> break
        od;
        r = 0;
        do
        :: r < RANKS -> run rank(r); r++
        :: else -> break
        od;
        chosen = true
    }
}
