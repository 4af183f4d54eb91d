/*
 * One-sided access in a session: an initiator reads and writes a window of a server. The control
 * connection has one channel for each direction. Bytes go to places on a data connection, which may
 * be earlier or later than what is said of them. Either side may give up at any moment: the
 * initiator cancels, the server closes its window.
 *
 * It shows that every access ends on both sides, that no message is one that its reader has to take
 * for a lie, that a note is handed out once, behind its bytes, and exactly if the initiator reports
 * success, that note credit comes back, that a closed window and a cancelled access are quiet, and
 * that a number of a window is not given up while it is in use.
 *
 * Left out: several sockets, since cancel.pml has them; the proof of a key; windows of the
 * initiator; the number of accesses at once; a session that fails. A list comes in two messages, and
 * the bytes of an access are at most two slices.
 */

#ifndef ACCESSES
#define ACCESSES 1
#endif
#ifndef MOST_NOTES
#define MOST_NOTES 2 /* that the server's program has not taken */
#endif
#ifndef NOTES
#define NOTES 1 /* that are sent by themselves */
#endif
#ifndef ALL_HAVE_NOTES
#define ALL_HAVE_NOTES 0
#endif
#ifndef PARTS
#define PARTS 2
#endif
#ifndef SLICES
#define SLICES 2
#endif
#ifndef KINDS
#define KINDS 2 /* 0: writes; 1: reads; 2: both */
#endif
#define PLACES 2  /* numbers of places of writes, 1 to this; then 1 again */
#define NUMBERS 2 /* of windows */
#define NONE 255

mtype = { BIND, UNBIND, BEGIN, MORE, FINISHED, CANCEL, NOTE, /* the initiator says */
          ANSWER, CANCELLED, TAKEN,                          /* the server says */
          SLICE, STOPPED };                                  /* on a data connection */

#define CONTROL_ROOM 12
chan said_by_initiator = [CONTROL_ROOM] of { mtype, byte }; /* type; id, number or sum */
chan said_by_server = [CONTROL_ROOM] of { mtype, byte, byte }; /* type; id or sum; result */
chan bytes_to_server = [2] of { mtype, byte, byte };    /* type; place; where the message stops */
chan bytes_to_initiator = [2] of { mtype, byte, byte };

/* A control connection takes everything: what its socket does not take waits in memory. */
#define SAY(type, value) assert(nfull(said_by_initiator)); said_by_initiator!type, value
#define REPLY(type, value, result) assert(nfull(said_by_server)); said_by_server!type, value, result

#define SUCCESS 0
#define REFUSED 1
#define GIVEN_UP 2

/* A request: to move bytes from or to memory of one side. */
#define ACTIVE 1
#define ENDED 2   /* with success, and the session has not looked yet */
#define HALTED 3  /* it was cancelled, by either side */

/* The receiver's end of a place. */
#define OPEN 1
#define DISCARDS 2
#define GONE 3

typedef access {
    /* What it is. */
    bit is_read;
    bit has_note;
    byte slices; /* 0: it has no bytes and no place */
    byte number; /* of its window */
    byte place;
    /* At the initiator. */
    bit begun;
    bit answered;
    bit cancel_said;
    bit confirmed;
    bit arrived;
    bit over;
    byte result;
    byte request;
    bit asked_to_cancel;
    /* At the server. */
    bit served;
    bit listed;
    bit started;
    bit peer_cancelled;
    bit peer_finished;
    bit note_is_settled; /* handed out, or dropped */
    bit holds_window;
    bit served_over;
    byte served_result;
    byte served_request;
    /* Its bytes: the sender's end, and the receiver's. */
    bit moves;
    byte handed_out;
    byte written;
    byte stop_at;   /* what its STOPPED will say; NONE: nothing is to be said */
    byte receiver;
    byte moved;
    byte in_memory; /* slices that went into memory */
    byte cut_at;
    /* What the program of the server has got. */
    byte notes_handed_out;
}

access all[ACCESSES];

byte list_sent = NONE; /* the access whose second part is to be said */
byte begun_count;
byte over_count;
byte next_place = 1;

byte number = NONE; /* of the remote that the next access uses */
byte uses[NUMBERS];
bit number_taken[NUMBERS];
bit remote_closed[NUMBERS];
#ifndef RENEWALS
#define RENEWALS 1
#endif
byte renewals = RENEWALS; /* how often the program closes its remote and opens another one */

byte notes_left = NOTES;
byte notes_charged;
byte notes_freed;

bit bound[NUMBERS]; /* at the server */
byte list_read = NONE;
byte next_served;
byte next_started;
byte newest_said = 1;   /* place of a write: that was said, */
byte newest_opened = 1; /* and opened */
bit window_closes;
bit window_is_closed;
byte notes_expected;
byte notes_waiting;
byte notes_taken;
byte taken_said;

/* What a socket was given last: of which access, and whether from a copy. By direction. */
byte loaded[2] = NONE;
bit from_copy[2];

#define A all[i]
#define READS(i) all[i].is_read
#define SOCKET_HAS_ROOM(i) ((READS(i) -> len(bytes_to_initiator) : len(bytes_to_server)) < 2)

/* --- requests of both sides ------------------------------------------------------------------ */

inline request_ends(i, of_sender, how)
{
    if
    :: READS(i) == of_sender -> A.served_request = how /* the server sends what is read */
    :: else -> A.request = how
    fi
}

/* The send of a place is stopped. All of it arrives if all of it was handed out. */
inline stop_send(i)
{
    if
    :: A.moves ->
        A.moves = 0;
        if
        :: loaded[READS(i)] == i -> from_copy[READS(i)] = 1
        :: else
        fi;
        if
        :: A.handed_out < A.slices ->
            A.stop_at = A.handed_out;
            request_ends(i, 1, HALTED)
        :: else ->
#ifdef MISTAKE_SENT_IS_STOPPED
            request_ends(i, 1, HALTED)
#else
            request_ends(i, 1, ENDED)
#endif
        fi
    :: else
    fi
}

inline stop_receive(i)
{
    if
    :: A.receiver == OPEN ->
        A.receiver = DISCARDS;
        request_ends(i, 0, HALTED)
    :: else
    fi
}

/* --- the initiator --------------------------------------------------------------------------- */

#define IS_OVER(i) (A.request == 0 && list_sent != i && \
    (A.cancel_said -> A.confirmed : (A.is_read && A.arrived) || A.answered))

inline drop_number(which)
{
#ifdef MISTAKE_UNBINDS_EARLY
    if
    :: remote_closed[which] && number_taken[which] ->
#else
    if
    :: remote_closed[which] && uses[which] == 0 && number_taken[which] ->
#endif
        SAY(UNBIND, which);
        remote_closed[which] = 0;
        number_taken[which] = 0
    :: else
    fi
}

inline end_if_over(i)
{
    if
    :: !A.over && IS_OVER(i) ->
        A.over = 1;
        over_count++;
        uses[A.number]--;
        drop_number(A.number)
    :: else
    fi
}

inline stop_own(i)
{
    if
    :: A.request == ACTIVE && A.is_read -> stop_receive(i)
    :: A.request == ACTIVE && !A.is_read -> stop_send(i)
    :: else
    fi
}

inline set_result(i, value)
{
    if
    :: A.result == SUCCESS -> A.result = value
    :: else
    fi
}

inline use_number()
{
    if
    :: number == NONE ->
        if
        :: !number_taken[0] -> number = 0
        :: else -> number = 1
        fi;
        assert(!number_taken[number]);
        number_taken[number] = 1;
        SAY(BIND, number)
    :: else
    fi
}

inline begin(i)
{
    use_number();
    A.number = number;
    uses[number]++;
    A.begun = 1;
    begun_count++;
    notes_charged = notes_charged + A.has_note;
    A.stop_at = NONE;
    A.cut_at = NONE;
    if
    :: A.slices > 0 && A.is_read -> A.receiver = OPEN; A.request = ACTIVE
    :: A.slices > 0 && !A.is_read -> next_place = next_place % PLACES + 1; A.place = next_place;
        A.moves = 1; A.request = ACTIVE
    :: else
    fi;
    SAY(BEGIN, i);
    list_sent = (PARTS > 1 -> i : NONE)
}

/* Its program begins them one by one, closes its remote in between, and sends notes. */
active proctype initiator_program()
{
    byte i;
end:
    do
    :: atomic { begun_count < ACCESSES && list_sent == NONE &&
                notes_charged - notes_freed < MOST_NOTES ->
            i = begun_count;
            if
            :: KINDS != 1 -> A.is_read = 0
            :: KINDS != 0 -> A.is_read = 1
            fi;
            if
            :: !ALL_HAVE_NOTES -> A.has_note = 0
            :: A.has_note = 1
            fi;
            A.slices = SLICES;
#ifdef EMPTY
            if
            :: A.slices = 0
            :: skip
            fi;
#endif
            begin(i);
            i = 0
        }
    :: atomic { list_sent != NONE ->
            i = list_sent;
            SAY(MORE, i);
            list_sent = NONE;
            end_if_over(i);
            i = 0
        }
    :: atomic { renewals > 0 && number != NONE ->
            renewals--;
            remote_closed[number] = 1;
            drop_number(number);
            number = NONE
        }
    :: atomic { notes_left > 0 && notes_charged - notes_freed < MOST_NOTES ->
            notes_left--;
            SAY(NOTE, 0);
            notes_charged++
        }
    od
}

/* One for each access: cancels it, at any time, or not at all; its request ends. */
active [ACCESSES] proctype initiator_access()
{
    byte i = _pid - 1;
end:
    do
    :: atomic { A.begun && !A.over && !A.asked_to_cancel ->
            A.asked_to_cancel = 1;
#ifdef MISTAKE_ANSWERED_IS_GIVEN_UP
            set_result(i, GIVEN_UP);
#endif
            if
            :: A.answered || A.arrived /* and ends by itself */
            :: else ->
                set_result(i, GIVEN_UP);
                A.cancel_said = 1;
                stop_own(i);
                SAY(CANCEL, i)
            fi;
            assert(A.request != ACTIVE) /* it is quiet here, whatever the peer does */
        }
    :: atomic { A.request > ACTIVE ->
            if
            :: A.is_read && A.request == ENDED ->
                A.arrived = 1;
                if
#ifndef MISTAKE_FINISHED_BEHIND_CANCEL
                :: A.cancel_said && A.has_note
#endif
                :: else ->
                    A.result = SUCCESS;
                    if
                    :: A.has_note -> SAY(FINISHED, i)
                    :: else
                    fi
                fi
            :: else
            fi;
            A.request = 0;
            end_if_over(i)
        }
    od
}

active proctype initiator_reads()
{
    byte i;
    byte result;
end:
    do
    :: atomic { said_by_server?ANSWER, i, result ->
            assert(A.begun && !A.over && !A.answered && !A.confirmed);
            assert(!(A.is_read && A.slices > 0 && result == SUCCESS));
            A.answered = 1;
            if
            :: result == SUCCESS -> A.result = SUCCESS
            :: else ->
                set_result(i, REFUSED);
#ifdef MISTAKE_REFUSED_IS_NOT_STOPPED
                if
                :: !A.is_read -> stop_own(i)
                :: else
                fi
#else
                stop_own(i)
#endif
            fi;
            end_if_over(i);
            i = 0; result = 0
        }
    :: atomic { said_by_server?CANCELLED, i, _ ->
            assert(A.begun && !A.over && A.cancel_said && !A.confirmed);
            A.confirmed = 1;
            end_if_over(i);
            i = 0
        }
    :: atomic { said_by_server?TAKEN, i, _ ->
            assert(i > notes_freed && i <= notes_charged);
            notes_freed = i;
            i = 0
        }
    od
}

/* --- the server ------------------------------------------------------------------------------ */

inline keep_note()
{
    notes_waiting++
}

inline drop_note()
{
    notes_taken++;
    taken_said = notes_taken;
    REPLY(TAKEN, taken_said, 0)
}

inline expect_note()
{
    notes_expected++;
    assert(notes_expected - taken_said <= MOST_NOTES)
}

inline hand_out_note(i, is_done)
{
    if
    :: A.has_note && !A.note_is_settled && is_done ->
        A.notes_handed_out++;
        assert(A.notes_handed_out == 1 && A.in_memory == A.slices);
        keep_note()
    :: A.has_note && !A.note_is_settled && !(is_done) ->
#ifndef MISTAKE_NOTE_CREDIT_LOST
        drop_note()
#endif
    :: else
    fi;
    A.note_is_settled = 1
}

#define SAYS_DONE(i) (!A.is_read || A.slices == 0)
#ifdef MISTAKE_DONE_IS_NOT_SAID
#define IS_ANSWERED(i) (!A.peer_cancelled && (A.served_result != SUCCESS || SAYS_DONE(i)))
#else
#define IS_ANSWERED(i) (A.served_result == SUCCESS -> SAYS_DONE(i) : !A.peer_cancelled)
#endif

/* A write that was done before the cancel came is done for both sides. */
inline finish(i)
{
    if
    :: IS_ANSWERED(i) -> REPLY(ANSWER, i, A.served_result)
    :: else
    fi;
    if
    :: A.peer_cancelled -> REPLY(CANCELLED, i, 0)
    :: else
    fi;
    hand_out_note(i, A.served_result == SUCCESS);
    A.served_over = 1
}

#define WAITS_FOR_FINISHED(i) (A.is_read && A.has_note && A.slices > 0 && \
    A.served_result == SUCCESS && !A.peer_finished && !A.peer_cancelled)

inline finish_if_over(i)
{
    if
    :: A.started && A.served_request == 0 && !WAITS_FOR_FINISHED(i) -> finish(i)
    :: else
    fi
}

inline set_served_result(i, value)
{
    if
    :: A.served_result == SUCCESS -> A.served_result = value
    :: else
    fi
}

inline stop_served(i)
{
    if
    :: A.served_request == ACTIVE && A.is_read -> stop_send(i)
    :: A.served_request == ACTIVE && !A.is_read -> stop_receive(i)
    :: else
    fi
}

inline take_part(i)
{
    assert(bound[A.number]); /* a correct initiator names no number that it has given up */
    if
    :: A.served_result == SUCCESS && window_closes ->
        A.served_result = REFUSED;
        A.holds_window = 0
    :: A.served_result == SUCCESS && !window_closes -> A.holds_window = 1
    :: else
    fi
}

/* A refused one gets its place, too: its bytes may be on their way. */
inline start_served(i)
{
    A.started = 1;
    if
    :: A.slices > 0 && !A.is_read ->
#ifdef MISTAKE_REFUSED_HAS_NO_PLACE
        if
        :: A.served_result == SUCCESS
#else
        if
        :: true
#endif
            -> assert(A.place == newest_opened % PLACES + 1);
            newest_opened = A.place;
            A.receiver = (A.served_result == SUCCESS -> OPEN : DISCARDS)
#ifdef MISTAKE_REFUSED_HAS_NO_PLACE
        :: else
#endif
        fi
    :: A.slices > 0 && A.is_read && A.served_result == SUCCESS -> A.moves = 1
    :: A.slices > 0 && A.is_read && A.served_result != SUCCESS -> A.stop_at = 0
    :: else
    fi;
    if
    :: A.slices > 0 && A.served_result == SUCCESS -> A.served_request = ACTIVE
    :: A.slices > 0 && A.served_result != SUCCESS -> A.served_request = HALTED
    :: else
    fi;
    if
    :: A.served_request != ACTIVE -> A.holds_window = 0
    :: else
    fi;
    finish_if_over(i)
}

active proctype server_reads()
{
    byte i;
end:
    do
    :: atomic { said_by_initiator?BIND, i ->
            assert(!bound[i]);
            bound[i] = 1;
            i = 0
        }
    :: atomic { said_by_initiator?UNBIND, i ->
            assert(bound[i]);
            bound[i] = 0;
            i = 0
        }
    :: atomic { said_by_initiator?BEGIN, i ->
            assert(list_read == NONE && i == next_served);
            if
            :: A.has_note -> expect_note()
            :: else
            fi;
            if
            :: A.slices > 0 && !A.is_read ->
                assert(A.place == newest_said % PLACES + 1);
                newest_said = A.place
            :: else
            fi;
            next_served++;
            A.served = 1;
            take_part(i);
            if
            :: PARTS > 1 -> list_read = i
            :: else -> A.listed = 1
            fi;
            i = 0
        }
    :: atomic { said_by_initiator?MORE, i ->
            assert(list_read == i);
            list_read = NONE;
            take_part(i);
            A.listed = 1;
            i = 0
        }
    :: atomic { said_by_initiator?FINISHED, i ->
            assert(A.served && !A.served_over && A.is_read && A.has_note && !A.peer_finished);
            assert(list_read != i);
            A.peer_finished = 1;
            hand_out_note(i, true);
            finish_if_over(i);
            i = 0
        }
    :: atomic { said_by_initiator?CANCEL, i ->
            assert(i < next_served);
            if
            :: A.served_over -> REPLY(CANCELLED, i, 0)
            :: else ->
                assert(!A.peer_cancelled);
                A.peer_cancelled = 1;
                set_served_result(i, GIVEN_UP);
                if
                :: !A.started -> A.holds_window = 0
                :: else ->
                    stop_served(i);
                    finish_if_over(i)
                fi
            fi;
            i = 0
        }
    :: atomic { said_by_initiator?NOTE, i ->
            expect_note();
            keep_note()
        }
    od
}

active proctype server_works()
{
    byte i;
end:
    do
    :: atomic { next_started < ACCESSES && all[next_started].listed -> /* in their order */
            i = next_started;
            next_started++;
            start_served(i);
            i = 0
        }
    :: atomic { notes_waiting > 0 ->
            notes_waiting--;
            drop_note()
        }
    :: atomic { !window_closes -> window_closes = 1 } /* the program closes it, at any time */
    od
}

#define USES_CLOSING(i) (window_closes && A.holds_window)

/* One for each access. */
active [ACCESSES] proctype server_access()
{
    byte i = _pid - ACCESSES - 4;
end:
    do
    :: atomic { A.served_request > ACTIVE ->
            if
            :: A.served_request == HALTED -> set_served_result(i, GIVEN_UP)
#ifdef MISTAKE_NOTE_OF_CANCELLED
            :: A.served_request == ENDED -> A.served_result = SUCCESS
#else
            :: A.served_request == ENDED && !(A.is_read && A.peer_cancelled) -> A.served_result = SUCCESS
#endif
            :: else
            fi;
            A.served_request = 0;
            A.holds_window = 0;
            finish_if_over(i)
        }
    :: atomic { USES_CLOSING(i) && A.served_request <= ACTIVE ->
            set_served_result(i, REFUSED);
            if
            :: A.started -> stop_served(i)
            :: else -> A.holds_window = 0
            fi
        }
    od
}

active proctype window_close_returns()
{
    atomic { window_closes &&
#ifndef MISTAKE_CLOSES_EARLY
             !(all[0].holds_window || all[ACCESSES - 1].holds_window || all[ACCESSES / 2].holds_window) &&
#endif
             true -> window_is_closed = 1 }
}

/* --- the data connection --------------------------------------------------------------------- */

/* A slice is loaded, and then written, from memory or from a copy. */
active [ACCESSES] proctype sends_bytes()
{
    byte i = _pid - 2 * ACCESSES - 5;
end:
    do
    :: atomic { A.moves && A.handed_out < A.slices && loaded[READS(i)] == NONE ->
            A.handed_out++;
            loaded[READS(i)] = i;
            from_copy[READS(i)] = 0
        }
    :: atomic { loaded[READS(i)] == i && SOCKET_HAS_ROOM(i) ->
            if
            :: A.is_read ->
                assert(from_copy[1] || !window_is_closed);
                bytes_to_initiator!SLICE, i, 0
            :: else ->
                assert(from_copy[0] || A.request == ACTIVE);
                bytes_to_server!SLICE, A.place, 0
            fi;
            loaded[READS(i)] = NONE;
            from_copy[READS(i)] = 0;
            A.written++;
            if
            :: A.written == A.slices && A.moves -> A.moves = 0; request_ends(i, 1, ENDED)
            :: else
            fi
        }
    :: atomic { A.begun && A.stop_at != NONE && A.is_read && nfull(bytes_to_initiator) ->
            bytes_to_initiator!STOPPED, i, A.stop_at;
            A.stop_at = NONE
        }
    :: atomic { A.begun && A.stop_at != NONE && !A.is_read && nfull(bytes_to_server) ->
            bytes_to_server!STOPPED, A.place, A.stop_at;
            A.stop_at = NONE
        }
    od
}

/* The receiver's end is complete: all has come, or all that comes. */
inline complete(i)
{
    if
    :: A.moved == (A.cut_at != NONE -> A.cut_at : A.slices) ->
        if
        :: A.receiver == OPEN && A.cut_at == NONE -> request_ends(i, 0, ENDED)
        :: A.receiver == OPEN && A.cut_at != NONE -> request_ends(i, 0, HALTED)
        :: else
        fi;
        A.receiver = GONE
    :: else
    fi
}

inline slice_arrives(i)
{
    assert(A.moved < (A.cut_at != NONE -> A.cut_at : A.slices));
    A.moved++;
    if
    :: A.receiver == OPEN ->
        A.in_memory++;
        assert(A.is_read -> A.request == ACTIVE : !window_is_closed)
    :: else
    fi;
    complete(i)
}

inline stop_arrives(i, bytes)
{
    assert(A.cut_at == NONE && bytes >= A.moved && bytes < A.slices);
    A.cut_at = bytes;
    complete(i)
}

#define IS_HERE(i) (A.receiver == OPEN || A.receiver == DISCARDS)

/* Bytes of a write wait in their socket until its place is open. A read has its place already. */
active [ACCESSES] proctype receives_bytes()
{
    byte i = _pid - 3 * ACCESSES - 5;
    byte bytes;
end:
    do
    :: atomic { !READS(i) && IS_HERE(i) && bytes_to_server?[SLICE, eval(A.place), _] ->
            bytes_to_server?SLICE, eval(A.place), _;
            slice_arrives(i)
        }
    :: atomic { !READS(i) && IS_HERE(i) && bytes_to_server?[STOPPED, eval(A.place), _] ->
            bytes_to_server?STOPPED, eval(A.place), bytes;
            stop_arrives(i, bytes);
            bytes = 0
        }
#ifdef MISTAKE_BYTES_DO_NOT_WAIT
    :: atomic { bytes_to_server?[SLICE, _, _] && !READS(i) && A.begun && A.receiver == 0 ->
            if
            :: bytes_to_server?[SLICE, eval(A.place), _] -> assert(false)
            :: else
            fi
        }
#endif
    :: atomic { bytes_to_initiator?[SLICE, eval(i), _] ->
            bytes_to_initiator?SLICE, eval(i), _;
            assert(IS_HERE(i));
            slice_arrives(i)
        }
    :: atomic { bytes_to_initiator?[STOPPED, eval(i), _] ->
            bytes_to_initiator?STOPPED, eval(i), bytes;
            assert(IS_HERE(i));
            stop_arrives(i, bytes);
            bytes = 0
        }
    od
}

/* --- when nothing moves any more ------------------------------------------------------------- */

active proctype at_rest()
{
    byte i;

    timeout -> d_step {
        assert(begun_count == ACCESSES && over_count == ACCESSES && notes_left == 0);
        assert(len(said_by_initiator) == 0 && len(said_by_server) == 0);
        assert(len(bytes_to_initiator) == 0 && len(bytes_to_server) == 0);
        assert(notes_waiting == 0 && notes_freed == notes_charged && notes_taken == notes_charged);
        assert(window_is_closed);
        i = 0;
        do
        :: i < ACCESSES ->
            assert(A.over && A.served_over && !A.holds_window);
            assert(A.request == 0 && A.served_request == 0 && !IS_HERE(i));
            assert(A.result != SUCCESS || A.in_memory == A.slices);
            assert(A.notes_handed_out == (A.has_note && A.result == SUCCESS));
            i++
        :: else -> break
        od
    }
}
