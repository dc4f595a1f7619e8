/* keyed.pml: named calls: the table and its log (table.c), and who runs the log in each process (keyed.c).
 *
 * Two ranks make NAMES calls in opposite orders: rank 0 submits the first ones and makes a blocking call for the
 * last one, rank 1 the other way round; then each waits for what it has submitted, closes, and joins its worker.
 * With BLOCKING, the last two of three calls block, so a rank has to run the other's call before its own is
 * complete. With CALLERS, every call of a rank is made by a thread of its own, and blocks.
 *
 * The table's lock and the process's mutex guard sections that are one step here (lock.pml is about the lock). A
 * sleep ends when its word has changed: bell.pml and wake.pml show that no wake-up is lost. Running a call is a
 * meeting of both ranks. Deadlines and slices are left out: no wait ends without its reason.
 *
 * Safety: one thread of a process at a time runs the log; both ranks run the same call at the same place; nobody is
 * stuck.
 *
 * check: NAMES=2
 * check: NAMES=3 BLOCKING
 * check: NAMES=2 CALLERS
 * fails: BUG_NO_HAND_OVER NAMES=2: stuck
 * fails: BUG_SEEN_LATE NAMES=2: stuck
 * fails: BUG_EVENT_LATE NAMES=2: stuck
 * fails: BUG_RING_OTHERS_ONLY NAMES=2: stuck
 * fails: BUG_RING_BEFORE_LOG NAMES=2: stuck
 * fails: BUG_OWN_ORDER NAMES=2: assertion
 * fails: BUG_LEAD_WITHOUT_MUTEX NAMES=2: assertion */

#define RANKS 2

/* Shared between the ranks. */
byte arrivals[NAMES];
byte log[NAMES], log_end;
byte event[RANKS];              /* the log bells */
byte met[NAMES], met_as[NAMES]; /* of the log's places: who is there, and with which call, plus one */

/* Of each process. */
bool waiting[RANKS * NAMES];
bool running[RANKS], started[RANKS], closing[RANKS], joined[RANKS];
byte runners[RANKS]; /* a ghost */
byte next[RANKS];
byte handover[RANKS];
bool complete[RANKS * NAMES];

#define REQUEST(r, name) ((r) * NAMES + (name))
#if NAMES == 2
#define WAITS(r) (waiting[REQUEST(r, 0)] || waiting[REQUEST(r, 1)])
#else
#define WAITS(r) (waiting[REQUEST(r, 0)] || waiting[REQUEST(r, 1)] || waiting[REQUEST(r, 2)])
#endif

#define NOBODY NAMES /* instead of a name */

inline append() {
    atomic { log[log_end] = name; log_end++ }
}

/* npci_keyed_enter */
inline enter(blocking) {
    atomic {
        leads = blocking && !running[rank];
        if
        :: !leads && !started[rank] -> started[rank] = true; run worker(rank)
        :: else
        fi;
        waiting[REQUEST(rank, name)] = true;
        arrivals[name]++;
        completes = arrivals[name] == RANKS;
#ifndef BUG_RING_BEFORE_LOG
        if
        :: completes -> append()
        :: else
        fi;
#endif
        running[rank] = running[rank] || leads;
        idle = !running[rank]
    };
    if
    :: completes ->
        event[1 - rank]++;
#ifndef BUG_RING_OTHERS_ONLY
        event[rank]++;
#endif
#ifdef BUG_RING_BEFORE_LOG
        append();
#endif
        completes = false
    :: else
    fi;
    if
    :: idle -> atomic { idle = false; handover[rank]++ }
    :: else
    fi
}

/* npci_keyed_step, with the call's run. */
inline step() {
#ifdef BUG_OWN_ORDER
    /* Each process runs what is complete in the order of its own calls, whatever the log says. */
    atomic {
        if
        :: log_end > next[rank] && waiting[REQUEST(rank, rank)] && arrivals[rank] == RANKS -> name = rank
        :: log_end > next[rank] && !(waiting[REQUEST(rank, rank)] && arrivals[rank] == RANKS) -> name = 1 - rank
        :: else
        fi
    };
#else
    if
    :: log_end > next[rank] -> name = log[next[rank]]
    :: else
    fi;
#endif
    if
    :: name != NOBODY ->
        atomic {
            assert(waiting[REQUEST(rank, name)]);
            waiting[REQUEST(rank, name)] = false
        };
        atomic {
            met[next[rank]]++;
            assert(met_as[next[rank]] == 0 || met_as[next[rank]] == name + 1);
            met_as[next[rank]] = name + 1
        };
        atomic { met[next[rank]] == RANKS; next[rank]++; complete[REQUEST(rank, name)] = true }
    :: else
    fi
}

/* npci_keyed_lead_until */
inline lead_until(own) {
    atomic { runners[rank]++; assert(runners[rank] == 1) };
    do
    :: own == NOBODY && !WAITS(rank) -> break
    :: own != NOBODY && complete[REQUEST(rank, own)] -> break
    :: else ->
#ifndef BUG_EVENT_LATE
        seen = event[rank];
#endif
        step();
#ifdef BUG_EVENT_LATE
        seen = event[rank];
#endif
        if
        :: name == NOBODY -> atomic { event[rank] != seen; seen = 0 }
        :: else -> atomic { name = NOBODY; seen = 0 }
        fi
    od;
    runners[rank]--
}

/* npci_keyed_yield */
inline yield() {
    atomic { running[rank] = false; idle = WAITS(rank) };
#ifndef BUG_NO_HAND_OVER
    if
    :: idle -> handover[rank]++
    :: else
    fi;
#endif
    idle = false
}

proctype worker(byte rank) {
    byte name = NOBODY, seen, shift;
    bool leads, idle;
    do
    :: closing[rank] -> break
    :: else ->
#ifndef BUG_SEEN_LATE
        shift = handover[rank];
#endif
#ifdef BUG_LEAD_WITHOUT_MUTEX
        leads = !running[rank] && WAITS(rank);
        running[rank] = running[rank] || leads;
#else
        atomic { leads = !running[rank] && WAITS(rank); running[rank] = running[rank] || leads };
#endif
#ifdef BUG_SEEN_LATE
        shift = handover[rank];
#endif
        if
        :: leads ->
            lead_until(NOBODY);
            yield()
        :: else ->
            if
            :: !closing[rank] -> handover[rank] != shift
            :: else
            fi
        fi;
        atomic { leads = false; shift = 0 }
    od;
    joined[rank] = true
}

/* npci_keyed_run */
inline call() {
    own = name;
    enter(true);
    if
    :: leads ->
        atomic { leads = false; name = NOBODY };
        lead_until(own);
        yield()
    :: else -> complete[REQUEST(rank, own)]
    fi;
    own = NOBODY
}

/* npci_keyed_close */
inline close() {
    closing[rank] = true;
    handover[rank]++;
    event[rank]++;
    !started[rank] || joined[rank];
    assert(!WAITS(rank) && !running[rank])
}

#ifdef CALLERS

byte done[RANKS];

proctype caller(byte rank; byte name) {
    byte own = NOBODY, seen;
    bool leads, completes, idle, last;
    call();
    atomic { done[rank]++; last = done[rank] == NAMES };
    if
    :: last -> close()
    :: else
    fi
}

init {
    atomic { run caller(0, 0); run caller(0, 1); run caller(1, 0); run caller(1, 1) }
}

#else

#ifdef BLOCKING
#define BLOCKS 2
#else
#define BLOCKS 1
#endif
#define NAME(i) (rank == 0 -> (i) : NAMES - 1 - (i))

proctype caller(byte rank) {
    byte name, own = NOBODY, seen, i;
    bool leads, completes, idle;
    do
    :: i < NAMES - BLOCKS -> name = NAME(i); enter(false); i++
    :: i >= NAMES - BLOCKS && i < NAMES -> name = NAME(i); call(); i++
    :: else -> break
    od;
    i = 0;
    name = 0;
    do
    :: i < NAMES -> complete[REQUEST(rank, i)]; i++
    :: else -> break
    od;
    close()
}

init {
    atomic { run caller(0); run caller(1) }
}

#endif
