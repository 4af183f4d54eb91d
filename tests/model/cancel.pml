/*
 * Sends and receives of one tag that either side cancels at any moment: before the POST, between
 * slices, while a call of the kernel uses the memory, and at the same time as the other side. Two
 * forward sockets and the reverse one are channels that are read at any speed.
 *
 * It shows that a request that is reported as ended has memory that nothing reads or writes any
 * more, that every request ends, that the other side's request ends, too, that no record is one
 * that its reader has to take for a violation, that messages keep their order, and that a number
 * is used again only when its receive has ended.
 *
 * Left out: several tags, messages that are too long, and the limit of the credit, which
 * matching.pml has; separate framing; GPU memory. A long message has two slices.
 */

#ifndef SENDS
#define SENDS 2 /* at most */
#endif
#ifndef RECEIVES
#define RECEIVES 1
#endif
#ifndef NUMBERS
#define NUMBERS 3 /* of receives: 0 to NUMBERS - 1, then 0 again */
#endif
#ifndef OUTSTANDING
#define OUTSTANDING 2 /* receives at once, less than NUMBERS */
#endif
#ifndef CALLS
#define CALLS 1 /* 1: a call takes time, so that a cancel can come in its middle */
#endif
#ifndef SOCKETS
#define SOCKETS 2
#endif
#define NONE 255

mtype = { EAGER, AHEAD, SLICE, CANCELLED, POST, CANCEL };

/* Type; number of the receive, or POSTs heard; slices of the message, or bytes in CANCELLED; which
   message. */
#ifndef ROOM
#define ROOM 2
#endif
chan forward[SOCKETS] = [ROOM] of { mtype, byte, byte, byte };
chan reverse = [4] of { mtype, byte };
chan planned = [4] of { mtype, byte, byte, byte }; /* records for socket 0 */
chan unexpected = [SENDS] of { byte, byte };

#define WAITING 1
#define MOVING 2
#define ENDED 3

typedef sending {
    byte state;
    byte slices;
    byte handed_out;
    byte written;
    byte number; /* of its receive; NONE: it went ahead */
    bit has_copy; /* while its record waits for socket 0 */
    bit asked_to_cancel;
    bit quiet;    /* the program knows that it has ended */
}

typedef receiving {
    byte state;
    byte number;
    bit matched;
    byte slices;
    byte begun;
    byte moved;
    byte cut_at;
    byte message;
    bit cancelled;
    bit quiet;
}

sending sends[SENDS];
receiving receives[RECEIVES];

/* The sender. */
byte sent;
byte posts[RECEIVES]; /* numbers that no message has used yet */
byte post_count;
byte posts_heard;
byte unposted; /* messages that went ahead, and whose POST has not come */
byte loaded[SOCKETS] = NONE;
bit loaded_is_eager[SOCKETS];
bit copied[SOCKETS]; /* from there it is written, not from the program's memory */
bit writes[SOCKETS]; /* a call is under way */

/* The receiver. */
byte posted;
byte outstanding;
byte next_number;
bit wrapped;
byte coming[SOCKETS] = NONE; /* whose payload is next */
bit discards[SOCKETS];
bit reads[SOCKETS];
byte coming_ahead = NONE; /* an unexpected message whose payload is next, */
byte coming_heard;        /* and the POSTs that its sender had heard of */

#define S sends[k]
#define R receives[r]

/* --- the sender ------------------------------------------------------------------------------ */

#define HAS_SLICE(k) (sends[k].state == MOVING && sends[k].handed_out < sends[k].slices)

/* With a receive. */
inline open_posted(to)
{
    S.state = MOVING;
    S.number = to;
    if
    :: S.slices == 1 -> S.handed_out = 1; assert(nfull(planned)); planned!EAGER, to, 1, k
    :: else
    fi
}

/* Before it. */
inline open_ahead()
{
    S.state = MOVING;
    S.number = NONE;
    S.handed_out = 1;
    unposted++;
    assert(nfull(planned));
    planned!AHEAD, posts_heard, 1, k
}

#define USES_LANE(k, s) (loaded[s] == k && writes[s] && !copied[s])
#define IN_CALL(k) (USES_LANE(k, 0) || USES_LANE(k, SOCKETS - 1))

inline stop_send()
{
    if
    :: S.handed_out < S.slices ->
        assert(nfull(planned));
#ifdef MISTAKE_SAYS_WHAT_IS_WRITTEN
        planned!CANCELLED, S.number, S.written, k
#else
        planned!CANCELLED, S.number, S.handed_out, k
#endif
    :: else
    fi;
    S.state = ENDED;
#ifndef MISTAKE_KEEPS_NO_COPY
    S.has_copy = 1;
    if
    :: loaded[0] == k && !writes[0] -> copied[0] = 1
    :: else
    fi;
    if
    :: loaded[SOCKETS - 1] == k && !writes[SOCKETS - 1] -> copied[SOCKETS - 1] = 1
    :: else
    fi
#endif
}

active proctype sender()
{
    byte k;
    byte number;
    byte i;
end:
    do
    :: atomic { sent < SENDS ->
            k = sent;
            sent++;
            S.state = WAITING;
            if
            :: S.slices = 1
            :: S.slices = 2
            fi;
            /* None may wait in front of it. */
            i = 0;
            do
            :: i < k && sends[i].state == WAITING -> break
            :: i < k && sends[i].state != WAITING -> i++
            :: i == k -> break
            od;
            if
            :: i == k && post_count > 0 ->
                number = posts[0];
                post_count--;
                i = 0;
                do
                :: i < post_count -> posts[i] = posts[i + 1]; i++
                :: else -> break
                od;
                posts[post_count] = 0;
                open_posted(number)
            :: i == k && post_count == 0 && S.slices == 1 -> open_ahead()
            :: else
            fi;
            k = 0; number = 0; i = 0
        }
    :: atomic { reverse?POST, number ->
            posts_heard++;
            /* It is a number that no receive can have now. */
            i = 0;
            do
            :: i < post_count -> assert(posts[i] != number); i++
            :: else -> break
            od;
            k = 0;
            do
            :: k < SENDS ->
                assert(!(HAS_SLICE(k) && S.number == number));
                k++
            :: else -> break
            od;
            k = 0;
            do
            :: k < SENDS && S.state != WAITING -> k++
            :: else -> break
            od;
            if
            :: unposted > 0 -> unposted--
            :: unposted == 0 && k < SENDS -> open_posted(number)
            :: else -> posts[post_count] = number; post_count++
            fi;
            k = 0; number = 0; i = 0
        }
    :: atomic { reverse?CANCEL, number ->
            k = 0;
            do
            :: k < SENDS && !(HAS_SLICE(k) && S.number == number) -> k++
            :: else -> break
            od;
            i = 0;
            do
            :: i < post_count && posts[i] != number -> i++
            :: else -> break
            od;
            if
            :: k < SENDS -> stop_send()
            :: k == SENDS && i < post_count ->
                post_count--;
                do
                :: i < post_count -> posts[i] = posts[i + 1]; i++
                :: else -> break
                od;
                posts[post_count] = 0;
#ifndef MISTAKE_WITHDRAWS_SILENTLY
                planned!CANCELLED, number, 0, NONE
#endif
            :: else /* all of it is on its way */
#ifdef MISTAKE_ANSWERS_ALWAYS
                -> planned!CANCELLED, number, 0, NONE
#endif
            fi;
            k = 0; number = 0; i = 0
        }
    od
}

/* One for each send: its program cancels it at any time, or not at all, and asks how it is. */
active [SENDS] proctype send_program()
{
    byte k = _pid - 1;
end:
    do
    :: atomic { (S.state == WAITING || S.state == MOVING) && !S.asked_to_cancel ->
            S.asked_to_cancel = 1;
            if
            :: S.state == WAITING -> S.state = ENDED
            :: else -> stop_send()
            fi
        }
#ifdef MISTAKE_ENDS_IN_CALL
    :: atomic { S.state == ENDED && !S.quiet -> S.quiet = 1 }
#else
    :: atomic { S.state == ENDED && !S.quiet && !IN_CALL(k) -> S.quiet = 1 }
#endif
    od
}

/* One for each forward socket: loads a record or slice, and writes it. */
active [SOCKETS] proctype sender_lane()
{
    byte s = _pid - SENDS - 1;
    byte k;
    byte number;
    byte bytes;
end:
    do
    :: atomic { s == 0 && loaded[s] == NONE && planned?[CANCELLED, _, _, _] && nfull(forward[0]) ->
            planned?CANCELLED, number, bytes, k;
            forward[0]!CANCELLED, number, bytes, NONE;
            k = 0; number = 0; bytes = 0
        }
    :: atomic { s == 0 && loaded[s] == NONE && (planned?[EAGER, _, _, _] || planned?[AHEAD, _, _, _]) ->
            planned?<_, _, _, k>; /* its record stays there until it is written */
            loaded[s] = k;
            loaded_is_eager[s] = 1;
            copied[s] = S.has_copy;
            k = 0
        }
    :: atomic { loaded[s] == NONE && (HAS_SLICE(0) || HAS_SLICE(SENDS - 1)) ->
            do
            :: !HAS_SLICE(k) -> k++
            :: else -> break
            od;
            loaded[s] = k;
            S.handed_out++;
            k = 0
        }
#if CALLS == 1
    :: atomic { loaded[s] != NONE && !writes[s] && nfull(forward[s]) ->
            k = loaded[s];
            assert(copied[s] || !S.quiet);
            writes[s] = 1;
            k = 0
        }
    :: atomic { writes[s] ->
#else
    :: atomic { loaded[s] != NONE && nfull(forward[s]) ->
#endif
            k = loaded[s];
            assert(copied[s] || !S.quiet);
            writes[s] = 0;
            S.written++;
            if
            :: loaded_is_eager[s] ->
                if
                :: planned?[EAGER, _, _, _] -> planned?EAGER, number, _, _; forward[s]!EAGER, number, 1, k
                :: planned?[AHEAD, _, _, _] -> planned?AHEAD, number, _, _; forward[s]!AHEAD, number, 1, k
                fi
            :: !loaded_is_eager[s] -> forward[s]!SLICE, S.number, S.slices, k
            fi;
            loaded[s] = NONE;
            loaded_is_eager[s] = 0;
            copied[s] = 0;
            if
            :: S.state == MOVING && S.written == S.slices -> S.state = ENDED
            :: else
            fi;
            k = 0; number = 0
        }
#if CALLS == 1
    :: atomic { writes[s] -> /* the socket took nothing */
            k = loaded[s];
            assert(copied[s] || !S.quiet);
            writes[s] = 0;
#ifndef MISTAKE_KEEPS_NO_COPY
            if
            :: S.state == ENDED -> copied[s] = 1
            :: else
            fi;
#endif
            k = 0
        }
#endif
    od
}

/* --- the receiver ---------------------------------------------------------------------------- */

#define IS_OUTSTANDING(r) (R.state == WAITING || R.state == MOVING)

inline find_number(wanted)
{
    r = 0;
    do
    :: r < RECEIVES && !(IS_OUTSTANDING(r) && R.number == wanted) -> r++
    :: else -> break
    od
}

/* The oldest receive without a message of those that the sender had not heard of. */
inline find_by_tag(heard)
{
#ifdef MISTAKE_IGNORES_POSTS_HEARD
    r = 0;
#else
    r = heard;
#endif
    do
    :: r < posted && !(R.state == WAITING && R.cut_at == NONE) -> r++
    :: else -> break
    od;
    if
    :: r >= posted -> r = RECEIVES
    :: else
    fi
}

/* A receive gets its message: in the order of both. */
inline match(its_message, its_slices)
{
    assert(R.state == WAITING && !R.matched);
    R.state = MOVING;
    R.matched = 1;
    R.slices = its_slices;
    R.message = its_message;
    other = 0;
    do
    :: other < RECEIVES ->
        assert(!(other < r && receives[other].matched && receives[other].message >= its_message));
        assert(!(other > r && receives[other].matched && receives[other].message <= its_message));
        other++
    :: else -> break
    od;
    other = 0
}

inline receive_ends()
{
    R.state = ENDED;
    outstanding--
}

inline end_if_complete()
{
    if
    :: R.cut_at != NONE && R.moved == R.cut_at -> receive_ends()
    :: R.cut_at == NONE && R.matched && R.moved == R.slices -> receive_ends()
    :: else
    fi
}

#define PAYLOAD_USES(r, s) (coming[s] == r && reads[s] && !discards[s])
#define IS_READ_INTO(r) (PAYLOAD_USES(r, 0) || PAYLOAD_USES(r, SOCKETS - 1))

active proctype receiver()
{
    byte r;
    byte other;
    byte count;
end:
    do
    :: atomic { posted < RECEIVES && outstanding < OUTSTANDING && nfull(reverse) ->
            if
            :: wrapped ->
                do
                :: find_number(next_number);
                   if
                   :: r < RECEIVES -> next_number = (next_number + 1) % NUMBERS
                   :: else -> break
                   fi
                od
            :: else
            fi;
            r = posted;
            posted++;
            outstanding++;
            R.state = WAITING;
            R.number = next_number;
            R.cut_at = NONE;
            R.message = NONE;
            next_number = (next_number + 1) % NUMBERS;
            wrapped = wrapped || next_number == 0;
            reverse!POST, R.number;
            if
            :: nempty(unexpected) ->
                unexpected?count, _;
                match(count, 1);
                R.begun = 1;
                R.moved = 1;
                receive_ends()
            :: empty(unexpected)
            fi;
            r = 0; count = 0
        }
    od
}

/* One for each receive: its program cancels it at any time, or not at all, and asks how it is. */
active [RECEIVES] proctype receive_program()
{
    byte r = _pid - SENDS - SOCKETS - 2;
end:
    do
    :: atomic { IS_OUTSTANDING(r) && !R.cancelled && nfull(reverse) &&
                !(R.matched && R.moved >= R.slices) ->
            R.cancelled = 1;
            reverse!CANCEL, R.number;
#ifdef MISTAKE_NUMBER_IS_FREE
            receive_ends();
#endif
#ifndef MISTAKE_STILL_WRITES
            if
            :: coming[0] == r && !reads[0] -> discards[0] = 1
            :: else
            fi;
            if
            :: coming[SOCKETS - 1] == r && !reads[SOCKETS - 1] -> discards[SOCKETS - 1] = 1
            :: else
            fi
#endif
        }
    :: atomic { (R.state == ENDED || R.cancelled) && !R.quiet && !IS_READ_INTO(r) -> R.quiet = 1 }
    od
}

/* One for each forward socket: takes a record, and reads the payload behind it. */
active [SOCKETS] proctype receiver_lane()
{
    byte s = _pid - SENDS - SOCKETS - RECEIVES - 2;
    byte r;
    byte other;
    byte number;
    byte count;
    byte k;
#define BETWEEN_RECORDS (coming[s] == NONE && (s != 0 || coming_ahead == NONE))
end:
    do
    :: atomic { BETWEEN_RECORDS && forward[s]?[EAGER, _, _, _] ->
            forward[s]?EAGER, number, _, k;
            find_number(number);
            assert(r < RECEIVES && !R.matched && R.cut_at == NONE);
            match(k, 1);
            R.begun = 1;
            coming[s] = r;
            discards[s] = R.cancelled;
            r = 0; number = 0; k = 0
        }
    :: atomic { BETWEEN_RECORDS && forward[s]?[AHEAD, _, _, _] ->
            forward[s]?AHEAD, number, _, k;
            assert(number <= posted);
            find_by_tag(number);
            if
            :: r < RECEIVES ->
                match(k, 1);
                R.begun = 1;
                coming[s] = r;
                discards[s] = R.cancelled
            :: else ->
                coming_ahead = k;
                coming_heard = number
            fi;
            r = 0; number = 0; k = 0
        }
    :: atomic { BETWEEN_RECORDS && forward[s]?[SLICE, _, _, _] ->
            forward[s]?SLICE, number, count, k;
            find_number(number);
            assert(r < RECEIVES && (!R.matched || R.slices == count));
            assert(R.begun < (R.cut_at != NONE -> R.cut_at : count));
            if
            :: !R.matched -> match(k, count)
            :: else -> assert(R.message == k)
            fi;
            R.begun++;
            coming[s] = r;
            discards[s] = R.cancelled;
            r = 0; number = 0; count = 0; k = 0
        }
    :: atomic { BETWEEN_RECORDS && forward[s]?[CANCELLED, _, _, _] ->
            forward[s]?CANCELLED, number, count, _;
            find_number(number);
            assert(r < RECEIVES && R.cut_at == NONE && count >= R.begun);
            assert(count == 0 || count < (R.matched -> R.slices : 2));
            R.cut_at = count;
            end_if_complete();
            r = 0; number = 0; count = 0
        }
#if CALLS == 1
    :: atomic { coming[s] != NONE && !reads[s] -> reads[s] = 1 }
    :: atomic { reads[s] ->
#else
    :: atomic { coming[s] != NONE ->
#endif
            r = coming[s];
            assert(discards[s] || !R.quiet);
            reads[s] = 0;
            coming[s] = NONE;
            discards[s] = 0;
            R.moved++;
            end_if_complete();
            r = 0
        }
#if CALLS == 1
    :: atomic { reads[s] -> /* not all of it had come */
            r = coming[s];
            assert(discards[s] || !R.quiet);
            reads[s] = 0;
            discards[s] = R.cancelled;
            r = 0
        }
#endif
    :: atomic { s == 0 && coming_ahead != NONE -> /* its receive may have been posted since */
            find_by_tag(coming_heard);
            if
            :: r < RECEIVES ->
                match(coming_ahead, 1);
                R.begun = 1;
                R.moved = 1;
                receive_ends()
            :: else ->
                assert(nfull(unexpected));
                unexpected!coming_ahead, 1
            fi;
            coming_ahead = NONE;
            coming_heard = 0;
            r = 0
        }
    od
}

/* --- when nothing moves any more ------------------------------------------------------------- */

bit one_waits;

active proctype at_rest()
{
    byte k;
    byte r;

    timeout -> d_step {
        assert(sent == SENDS);
        assert(len(forward[0]) == 0 && len(forward[SOCKETS - 1]) == 0);
        assert(len(reverse) == 0 && len(planned) == 0);
        k = 0;
        do
        :: k < SENDS ->
            assert(S.state == WAITING || S.quiet);
            one_waits = one_waits || S.state == WAITING;
            k++
        :: else -> break
        od;
        one_waits = one_waits || nempty(unexpected);
        r = 0;
        do
        :: r < posted ->
            /* Only a receive without a message is left, and none if there is a message. */
            assert(R.state == ENDED || (R.state == WAITING && !R.cancelled && !one_waits));
            assert(R.state != ENDED || R.quiet);
            r++
        :: else -> break
        od
    }
}
