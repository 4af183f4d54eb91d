/*
 * The end of a comm of two forward sockets and the reverse one: the sender closes or dies at any
 * moment, with slices and POSTs in flight, and so does the receiver, which may give a reason. What
 * the kernel has taken of a socket arrives, and then its end; a closed receiver resets what comes.
 *
 * It shows that a send that was reported as done is delivered, also to a receive that is posted
 * after the end, that all other requests fail, that none waits for ever, that a FIN counts what its
 * reader has counted, and that a sender learns the reason that the receiver gave.
 *
 * Left out: matching, which is by number here; separate framing; connections that break in the
 * network. A short message goes on credit, a long one has two slices and waits for its POST.
 */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#define SOCKETS 2
#define NONE 255

mtype = { EAGER, SLICE, PART, FIN, PART_OF_FIN, POST, ABORT };

/* Type; which message, or how many records. */
chan forward[SOCKETS] = [2] of { mtype, byte };
bit forward_ends[SOCKETS]; /* behind what is in it */
chan reverse = [2] of { mtype };
bit reverse_ends;
bit sender_closed;
bit receiver_closed;
bit reason_given;

/* Who closes: the sender, the receiver, or both. */
#define SENDER 1
#define RECEIVER 2
byte who = NONE;

active proctype choice()
{
    if
    :: who = SENDER
    :: who = RECEIVER
    :: who = SENDER + RECEIVER
    fi
}

#define WAITING 1
#define MOVING 2
#define DONE 3
#define FAILED 4

typedef sending {
    byte state;
    byte slices;
    byte handed_out;
    byte written;
}

typedef receiving {
    byte state;
    byte slices; /* of its message; 0: not known */
    byte moved;
    bit buffered; /* a short message came first */
}

sending sends[MESSAGES];
receiving receives[MESSAGES];

byte sent;
byte opened;
byte posts_heard;
byte loaded[SOCKETS] = NONE;
byte records_written[SOCKETS];
bit was_reset;
bit sender_failed;
bit reason_known;

byte posted;
byte records_read[SOCKETS];
bit in_record[SOCKETS];
bit has_fin[SOCKETS];
bit ended[SOCKETS];
bit receiver_failed;

#define S sends[k]
#define R receives[k]

/* --- the sender ------------------------------------------------------------------------------ */

inline fail_sends()
{
    sender_failed = 1;
    k = 0;
    do
    :: k < MESSAGES ->
        if
        :: S.state == WAITING || S.state == MOVING -> S.state = FAILED
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0
}

#define IS_IDLE(k) (sends[k].state != MOVING)
#define HAS_SENT_ALL (!sender_failed && loaded[0] == NONE && loaded[1] == NONE && \
    IS_IDLE(0) && IS_IDLE(1) && IS_IDLE(MESSAGES - 1))

/* FIN goes if the socket takes it, or as much of it as it takes. */
inline end_forward(s, all)
{
    if
    :: all && nfull(forward[s]) -> forward[s]!FIN, records_written[s]
    :: all && nfull(forward[s]) -> forward[s]!PART_OF_FIN, 0
    :: all
    :: !all && loaded[s] != NONE && nfull(forward[s]) -> forward[s]!PART, loaded[s]
    :: !all
    fi;
    loaded[s] = NONE;
    forward_ends[s] = 1
}

active proctype sender()
{
    byte k;
    bit all;
end:
    do
    :: atomic { sent < MESSAGES && !sender_closed ->
            k = sent;
            sent++;
            if
            :: S.slices = 1
            :: S.slices = 2
            fi;
            S.state = (sender_failed -> FAILED : WAITING);
            k = 0
        }
    :: atomic { !sender_closed && !sender_failed && opened < sent &&
                (sends[opened].slices == 1 || posts_heard > opened) ->
            sends[opened].state = MOVING;
            opened++
        }
    :: atomic { reverse?POST -> posts_heard++ }
    :: atomic { reverse?ABORT ->
            if
            :: !sender_closed && !sender_failed -> reason_known = 1; fail_sends()
            :: else
            fi
        }
    :: atomic { !sender_closed && !sender_failed && reverse_ends && empty(reverse) -> fail_sends() }
#ifdef MISTAKE_RESET_ENDS
    :: atomic { !sender_closed && !sender_failed && was_reset -> fail_sends() }
#endif
    :: atomic { (who == SENDER || who == SENDER + RECEIVER) && !sender_closed ->
            /* Or dies, which looks the same: the sockets end where they are. */
            all = HAS_SENT_ALL;
            end_forward(0, all);
            end_forward(1, all);
            sender_closed = 1;
            if
            :: !sender_failed -> fail_sends()
            :: else
            fi;
            all = 0
        }
    od
}

/* One for each forward socket. */
active [SOCKETS] proctype sender_lane()
{
    byte s = _pid - 2;
    byte k;
#define HAS_SLICE(k) (sends[k].state == MOVING && sends[k].handed_out < sends[k].slices && \
    (s == 0 || sends[k].slices > 1))
end:
    do
    :: atomic { loaded[s] == NONE && !sender_failed && !sender_closed &&
                (HAS_SLICE(0) || HAS_SLICE(1) || HAS_SLICE(MESSAGES - 1)) ->
            do
            :: !HAS_SLICE(k) -> k++
            :: else -> break
            od;
            loaded[s] = k;
            S.handed_out++;
#ifdef MISTAKE_DONE_TOO_EARLY
            if
            :: S.handed_out == S.slices -> S.state = DONE
            :: else
            fi;
#endif
            k = 0
        }
    :: atomic { loaded[s] != NONE && !sender_failed && receiver_closed ->
            was_reset = 1; /* and the reverse socket is read to its end */
            loaded[s] = NONE
        }
    :: atomic { loaded[s] != NONE && !sender_failed && !receiver_closed && nfull(forward[s]) ->
            k = loaded[s];
            loaded[s] = NONE;
            if
            :: S.slices == 1 -> forward[s]!EAGER, k
            :: else -> forward[s]!SLICE, k
            fi;
            records_written[s]++;
            S.written++;
            if
            :: S.written == S.slices && S.state == MOVING -> S.state = DONE
            :: else
            fi;
            k = 0
        }
    od
}

/* --- the receiver ---------------------------------------------------------------------------- */

/* All bytes are there, or the receive fails. */
inline fail_receives()
{
    receiver_failed = 1;
    k = 0;
    do
    :: k < MESSAGES ->
        if
        :: R.state == WAITING || R.state == MOVING -> R.state = FAILED
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0
}

inline close_receiver()
{
    reverse_ends = 1;
    receiver_closed = 1;
    if
    :: !receiver_failed -> fail_receives()
    :: else
    fi
}

#define MAY_CLOSE ((who == RECEIVER || who == SENDER + RECEIVER) && !receiver_closed)

active proctype receiver()
{
    byte k;
end:
    do
    :: atomic { posted < MESSAGES && !receiver_closed && (nfull(reverse) || sender_closed) ->
            k = posted;
            posted++;
            if
#ifdef MISTAKE_DROPS_WHAT_CAME
            :: R.buffered && receiver_failed -> R.state = FAILED
#else
            :: R.buffered && receiver_failed -> R.state = DONE
#endif
            :: R.buffered && !receiver_failed -> R.state = DONE
            :: !R.buffered && receiver_failed -> R.state = FAILED
            :: else -> R.state = WAITING
            fi;
            k = 0;
            if
            :: !sender_closed && !receiver_failed -> reverse!POST
            :: sender_closed && !receiver_failed ->
                skip; /* the reverse socket is reset: no failure, the forward ones decide */
#ifdef MISTAKE_REVERSE_DECIDES
                fail_receives();
#endif
            :: else
            fi
        }
    :: atomic { MAY_CLOSE -> close_receiver() }
    :: atomic { MAY_CLOSE && nfull(reverse) -> /* it gives up, and says why */
            reason_given = 1;
            reverse!ABORT;
            close_receiver()
        }
    od
}

inline socket_ends()
{
    ended[s] = 1;
    if
#ifdef MISTAKE_FIRST_END
    :: true -> fail_receives()
#else
    :: ended[0] && ended[1] -> fail_receives()
#endif
    :: else
    fi
}

/* One for each forward socket. What comes to a closed receiver is thrown away. */
active [SOCKETS] proctype receiver_lane()
{
    byte s = _pid - SOCKETS - 3;
    byte k;
    byte count;
#define READS (!receiver_closed && !receiver_failed && !ended[s])
end:
    do
    :: atomic { READS && (forward[s]?[EAGER, _] || forward[s]?[SLICE, _]) ->
            assert(!in_record[s] && !has_fin[s]);
            forward[s]?_, k;
            records_read[s]++;
            R.moved++;
            R.slices = sends[k].slices;
            assert(R.slices == 1 || k < posted);
            if
            :: k >= posted -> R.buffered = 1
            :: k < posted && R.moved == R.slices -> R.state = DONE
            :: else -> R.state = MOVING
            fi;
            k = 0
        }
    :: atomic { READS && forward[s]?[PART, _] ->
            forward[s]?PART, _;
            in_record[s] = 1;
#ifdef MISTAKE_LOST_AT_ONCE
            fail_receives();
#endif
        }
    :: atomic { READS && forward[s]?[FIN, _] ->
            forward[s]?FIN, count;
            assert(count == records_read[s]);
            count = 0;
            has_fin[s] = 1
        }
    :: atomic { READS && forward[s]?[PART_OF_FIN, _] ->
            forward[s]?PART_OF_FIN, _
        }
    :: atomic { READS && forward_ends[s] && empty(forward[s]) -> socket_ends() }
    :: atomic { receiver_closed && nempty(forward[s]) -> forward[s]?_, _ }
    od
}

/* --- when nothing moves any more ------------------------------------------------------------- */

active proctype at_rest()
{
    byte k;

    timeout -> d_step {
        assert(sender_closed == (who != RECEIVER) && receiver_closed == (who != SENDER));
        assert(sender_closed || !reason_given || reason_known);
        k = 0;
        do
        :: k < MESSAGES ->
            assert(S.state != WAITING && S.state != MOVING);
            assert(R.state != WAITING && R.state != MOVING);
            assert(receiver_closed || S.state != DONE || R.state == DONE);
            k++
        :: else -> break
        od
    }
}
