/* meet.pml: the meeting of meet.c, with two cells a rank, and what ranks do when their calls disagree.
 *
 * A rank makes CALLS calls. Each has a fingerprint of 0 or 1, chosen freely. Shared memory holds, for each cell and
 * note, which meeting or call it was last written for (`owner`, a ghost) and the fingerprint; the payload, the middle
 * buffers and the asides are written and read together with the cell and stand for it.
 *
 * Safety: whoever reads a cell or a note finds what was written for the meeting it is in; all ranks find the same.
 *
 * check: RANKS=2 CALLS=4
 * check: RANKS=3 CALLS=2
 * fails: BUG_ONE_CELL RANKS=2 CALLS=2: assertion
 * fails: BUG_SEQUENCE_FIRST RANKS=2 CALLS=1: assertion
 * fails: BUG_ONE_PEER RANKS=3 CALLS=2: assertion
 * fails: BUG_NOTES_NOT_MET RANKS=2 CALLS=1: assertion
 * fails: BUG_READ_LATE RANKS=2 CALLS=3: assertion */

#ifdef BUG_ONE_CELL
#define CELL(n, r) (r)
#else
#define CELL(n, r) (((n) % 2) * RANKS + (r))
#endif

byte sequence[2 * RANKS]; /* of each cell */
byte owner[2 * RANKS];       /* the meeting that the cell's contents belong to */
bit print[2 * RANKS];     /* the cell's fingerprint */
byte note[RANKS];         /* the call that the note belongs to */
byte found[CALLS + 1];    /* what ranks concluded of each call: 0 nobody yet, 1 equal, 2 mismatch */

/* npci_arrive: contents, sequence number (npci_advance_word), then the others' sequence numbers. */
inline arrive(mine) {
    n++;
#ifdef BUG_SEQUENCE_FIRST
    sequence[CELL(n, me)] = n;
    atomic { owner[CELL(n, me)] = n; print[CELL(n, me)] = mine }
#else
    atomic { owner[CELL(n, me)] = n; print[CELL(n, me)] = mine }
    sequence[CELL(n, me)] = n;
#endif
#ifdef BUG_READ_LATE
    /* What is wanted of the last meeting is read only after the arrival at this one. */
    assert(n == 1 || owner[CELL(n - 1, (me + 1) % RANKS)] == n - 1);
#endif
    i = 1;
    do
#ifdef BUG_ONE_PEER
    :: i == 1 -> sequence[CELL(n, (me + i) % RANKS)] >= n; i++
    :: i > 1 -> break
#else
    :: i < RANKS -> sequence[CELL(n, (me + i) % RANKS)] >= n; i++
    :: i == RANKS -> break
#endif
    od
}

/* One access a peer: others go on in between. */
inline read_cells(compare) {
    i = 0;
    do
    :: i < RANKS ->
        atomic {
            assert(owner[CELL(n, i)] == n);
            equal = equal && (!compare || print[CELL(n, i)] == print[CELL(n, me)]);
            i++
        }
    :: i == RANKS -> break
    od
}

proctype rank(byte me) {
    byte n = 0, i, call = 0;
    bit fingerprint, equal;
    do
    :: call < CALLS ->
        call++;
        if
        :: fingerprint = 0
        :: fingerprint = 1
        fi;
        arrive(fingerprint);
        equal = 1;
        read_cells(1);
        atomic {
            assert(found[call] == 0 || found[call] == 2 - equal);
            found[call] = 2 - equal
        }
        if
        :: equal ->
            read_cells(0) /* the payloads */
        :: else ->
            note[me] = call;
#ifndef BUG_NOTES_NOT_MET
            arrive(0);
#endif
            i = 0;
            do
            :: i < RANKS -> assert(note[i] == call); i++
            :: i == RANKS -> break
            od
        fi
    :: call == CALLS -> break
    od
}

init {
    atomic {
        byte r = 0;
        do
        :: r < RANKS -> run rank(r); r++
        :: r == RANKS -> break
        od
    }
}
