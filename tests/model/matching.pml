/*
 * Messages of two tags from a sender to a receiver: on credit, to a posted receive, in slices over
 * two forward sockets, and too long. The sockets and the reverse connection are channels that are
 * read at any speed. Numbers of receives wrap while an old receive is outstanding.
 *
 * It shows that the k-th message of a tag goes into the k-th receive of it, never two into one, that
 * the credit is never exceeded and comes back, that no number is used twice at a time, that no
 * record is a violation, and that all messages arrive.
 *
 * Left out: fifo mode, separate framing, cancel and close. A message is short, and fits into a
 * record, or long, and has two slices. A receive has room for both or for neither.
 */

#define TAGS 2
#ifndef FIRST
#define FIRST 3 /* messages of tag 0, */
#endif
#ifndef SECOND
#define SECOND 1 /* and of tag 1 */
#endif
#define MOST 3 /* of one tag */
#ifndef NUMBERS
#define NUMBERS 3 /* of receives: 0 to NUMBERS - 1, then 0 again */
#endif
#ifndef OUTSTANDING
#define OUTSTANDING 2 /* receives at once, less than NUMBERS */
#endif
#ifndef CREDIT
#define CREDIT 1 /* short messages on credit */
#endif
#ifndef LONG
#define LONG 1 /* how many messages may be long, */
#endif
#ifndef SMALL
#define SMALL 1 /* and how many receives may be too small */
#endif
#define NONE 255
#define COUNT(tag) (tag == 0 -> FIRST : SECOND)

mtype = { EAGER, AHEAD, SLICE, TOOLONG, POST, FREED };

/* Type; number, or POSTs heard; tag, of AHEAD only; which message of its tag it is. */
chan forward0 = [2] of { mtype, byte, byte, byte };
chan forward1 = [2] of { mtype, byte, byte, byte };
/* Type; number; credit freed since the beginning; tag; whether there is room. */
chan reverse = [2] of { mtype, byte, byte, byte, bit };

/* The sender's messages of a tag, in their order, and the POSTs that none of them has used. */
typedef outgoing {
    byte sent;   /* by the program, */
    byte opened; /* of those, */
    bit is_long[MOST];
    byte unposted; /* of those, on credit and before their POST */
    byte posts;
    byte number[MOST];
    bit has_room[MOST];
}

typedef receive {
    bit is_outstanding;
    byte number;
    byte tag;
    byte which; /* of its tag */
    byte order; /* among all */
    bit has_room;
    bit matched;
    byte missing;
}

outgoing out[TAGS];
byte charged;
byte freed_there;
byte posts_heard;
byte sliced = NONE; /* the number that a long message goes to, */
byte sliced_tag;
byte sliced_which;
byte slices_left;
byte long_left = LONG;

receive in[OUTSTANDING];
byte posted[TAGS];
byte filled[TAGS]; /* receives that have ended */
byte next_order;
byte next_number;
bit wrapped;
byte freed;
byte announced;
byte buffered;
byte small_left = SMALL;
chan unexpected0 = [CREDIT + 1] of { byte };
chan unexpected1 = [CREDIT + 1] of { byte };
byte coming = NONE; /* the tag of an unexpected message whose bytes come, */
byte coming_which;
byte coming_heard;

#define T out[tag]
#define R in[r]

/* --- the sender ------------------------------------------------------------------------------ */

inline open_posted(its_number, its_room)
{
    if
    :: !its_room -> forward0!TOOLONG, its_number, tag, T.opened
    :: its_room && !T.is_long[T.opened] -> forward0!EAGER, its_number, tag, T.opened
    :: its_room && T.is_long[T.opened] ->
        assert(sliced == NONE);
        sliced = its_number;
        sliced_tag = tag;
        sliced_which = T.opened;
        slices_left = 2
    :: else
    fi;
    T.opened++
}

inline take_post()
{
    assert(T.posts > 0);
    number = T.number[0];
    has_room = T.has_room[0];
    T.posts--;
    i = 0;
    do
    :: i < T.posts -> T.number[i] = T.number[i + 1]; T.has_room[i] = T.has_room[i + 1]; i++
    :: else -> break
    od;
    T.number[i] = 0;
    T.has_room[i] = 0;
    i = 0
}

#define MAY_GO_AHEAD(tag) (charged - freed_there < CREDIT && out[tag].opened < out[tag].sent && \
    out[tag].posts == 0 && !out[tag].is_long[out[tag].opened])

/* One for each tag: its messages are sent, and opened in their order. */
active [TAGS] proctype sender_of_tag()
{
    byte tag = _pid;
    byte number;
    bit has_room;
    byte i;
end:
    do
    :: atomic { T.sent < COUNT(tag) ->
            if
            :: long_left > 0 -> long_left--; T.is_long[T.sent] = 1
            :: skip
            fi;
            T.sent++
        }
    :: atomic { T.opened < T.sent && T.posts > 0 && nfull(forward0) && sliced == NONE ->
            take_post();
            open_posted(number, has_room);
            number = 0; has_room = 0
        }
    :: atomic { MAY_GO_AHEAD(tag) && nfull(forward0) ->
            charged++;
            forward0!AHEAD, posts_heard, tag, T.opened;
            T.opened++;
            T.unposted++
        }
    od
}

inline hear_freed(sum)
{
    assert(sum >= freed_there && sum <= charged);
    freed_there = sum
}

active proctype sender()
{
    byte tag;
    byte number;
    byte sum;
    byte i;
    bit has_room;
end:
    do
    :: atomic { reverse?POST, number, sum, tag, has_room ->
            hear_freed(sum);
            posts_heard++;
            assert(sliced != number);
            i = 0;
            do
            :: i < out[0].posts -> assert(out[0].number[i] != number); i++
            :: else -> break
            od;
            i = 0;
            do
            :: i < out[1].posts -> assert(out[1].number[i] != number); i++
            :: else -> break
            od;
            if
#ifndef MISTAKE_POST_IS_NOT_USED_UP
            :: T.unposted > 0 -> T.unposted--
#endif
            :: else ->
                T.number[T.posts] = number;
                T.has_room[T.posts] = has_room;
                T.posts++
            fi;
            tag = 0; number = 0; sum = 0; i = 0; has_room = 0
        }
    :: atomic { reverse?FREED, _, sum, _, _ ->
            assert(sum > freed_there);
            hear_freed(sum);
            sum = 0
        }
    :: atomic { slices_left > 0 && nfull(forward0) ->
            forward0!SLICE, sliced, sliced_tag, sliced_which;
            slices_left--;
            sliced = (slices_left > 0 -> sliced : NONE)
        }
    :: atomic { slices_left > 0 && nfull(forward1) ->
            forward1!SLICE, sliced, sliced_tag, sliced_which;
            slices_left--;
            sliced = (slices_left > 0 -> sliced : NONE)
        }
    od
}

/* --- the receiver ---------------------------------------------------------------------------- */

inline free_credit()
{
    freed++
}

inline find_number(wanted)
{
    r = 0;
    do
    :: r < OUTSTANDING && !(R.is_outstanding && R.number == wanted) -> r++
    :: else -> break
    od
}

/* The oldest receive of the tag without a message of those that the sender had not heard of. */
inline find_by_tag(its_tag, heard)
{
    r = OUTSTANDING;
    other = 0;
    do
    :: other < OUTSTANDING ->
        if
        :: in[other].is_outstanding && in[other].tag == its_tag && !in[other].matched &&
#ifndef MISTAKE_IGNORES_POSTS_HEARD
           in[other].order >= heard &&
#endif
           (r == OUTSTANDING || in[other].order < in[r % OUTSTANDING].order) -> r = other
        :: else
        fi;
        other++
    :: else -> break
    od;
    other = 0
}

inline receive_ends()
{
    filled[R.tag]++;
    R.is_outstanding = 0;
    R.matched = 0;
    R.number = 0;
    R.tag = 0;
    R.which = 0;
    R.order = 0;
    R.has_room = 0;
    R.missing = 0
}

/* The one property that all is about. */
inline match(its_which)
{
    assert(R.is_outstanding && !R.matched && R.which == its_which);
    R.matched = 1
}

inline buffer(its_tag, its_which)
{
    buffered++;
    assert(buffered <= CREDIT);
#ifdef MISTAKE_FREES_TWICE
    free_credit();
#endif
    if
    :: its_tag == 0 -> unexpected0!its_which
    :: else -> unexpected1!its_which
    fi
}

inline post_receive()
{
    r = 0;
#ifndef MISTAKE_REUSES_NUMBERS
    do
    :: wrapped ->
        find_number(next_number);
        if
        :: r < OUTSTANDING -> next_number = (next_number + 1) % NUMBERS
        :: else -> break
        fi
    :: !wrapped -> break
    od;
    r = 0;
#endif
    do
    :: R.is_outstanding -> r++
    :: else -> break
    od;
    R.is_outstanding = 1;
    R.number = next_number;
    R.tag = tag;
    R.which = posted[tag];
    R.order = next_order;
    R.has_room = 1;
    if
    :: small_left > 0 -> small_left--; R.has_room = 0
    :: skip
    fi;
    posted[tag]++;
    next_order++;
    next_number = (next_number + 1) % NUMBERS;
    wrapped = wrapped || next_number == 0
}

active proctype receiver()
{
    byte tag;
    byte r;
    byte which;
end:
    do
    :: atomic { next_order < FIRST + SECOND && nfull(reverse) &&
                !(in[0].is_outstanding && in[OUTSTANDING - 1].is_outstanding) ->
            if
            :: posted[0] < FIRST -> tag = 0
            :: posted[1] < SECOND -> tag = 1
            fi;
            post_receive();
            which = NONE;
            if
            :: tag == 0 && nempty(unexpected0) -> unexpected0?which
            :: tag == 1 && nempty(unexpected1) -> unexpected1?which
            :: tag == 0 && empty(unexpected0)
            :: tag == 1 && empty(unexpected1)
            fi;
            if
            :: which != NONE -> buffered--; free_credit()
            :: else
            fi;
            announced = freed;
            reverse!POST, R.number, announced, tag, R.has_room;
            if
            :: which != NONE -> match(which); receive_ends()
            :: else
            fi;
            tag = 0; r = 0; which = 0
        }
    :: atomic { freed - announced > CREDIT / 2 && nfull(reverse) ->
            announced = freed;
            reverse!FREED, 0, announced, 0, 0
        }
    od
}

inline slice_arrives()
{
    find_number(number);
    assert(r < OUTSTANDING && R.has_room);
    if
    :: !R.matched -> match(which); R.missing = 2
    :: else -> assert(R.which == which && R.tag == tag)
    fi;
    assert(R.missing > 0);
    R.missing--;
    if
    :: R.missing == 0 -> receive_ends()
    :: else
    fi
}

active proctype receiver_lane0()
{
    byte r;
    byte other;
    byte number;
    byte tag;
    byte which;
end:
    do
    :: atomic { coming == NONE && forward0?[EAGER, _, _, _] ->
            forward0?EAGER, number, tag, which;
            find_number(number);
            assert(r < OUTSTANDING && R.has_room && R.tag == tag);
            match(which);
            receive_ends();
            r = 0; number = 0; tag = 0; which = 0
        }
    :: atomic { coming == NONE && forward0?[TOOLONG, _, _, _] ->
            forward0?TOOLONG, number, tag, which;
            find_number(number);
            assert(r < OUTSTANDING && !R.has_room && R.tag == tag);
            match(which);
            receive_ends();
            r = 0; number = 0; tag = 0; which = 0
        }
    :: atomic { coming == NONE && forward0?[SLICE, _, _, _] ->
            forward0?SLICE, number, tag, which;
            slice_arrives();
            r = 0; number = 0; tag = 0; which = 0
        }
    :: atomic { coming == NONE && forward0?[AHEAD, _, _, _] ->
            forward0?AHEAD, number, tag, which;
            assert(number <= next_order);
            find_by_tag(tag, number);
            if
            :: r < OUTSTANDING -> free_credit(); match(which); receive_ends()
            :: else -> coming = tag; coming_which = which; coming_heard = number
            fi;
            r = 0; number = 0; tag = 0; which = 0
        }
    :: atomic { coming != NONE -> /* all of it has come: its receive may have been posted since */
            find_by_tag(coming, coming_heard);
            if
#ifndef MISTAKE_LOOKS_ONCE
            :: r < OUTSTANDING -> free_credit(); match(coming_which); receive_ends()
#endif
            :: else -> buffer(coming, coming_which)
            fi;
            coming = NONE; coming_which = 0; coming_heard = 0; r = 0
        }
    od
}

active proctype receiver_lane1()
{
    byte r;
    byte number;
    byte tag;
    byte which;
end:
    do
    :: atomic { forward1?SLICE, number, tag, which ->
            slice_arrives();
            r = 0; number = 0; tag = 0; which = 0
        }
    od
}

/* --- when nothing moves any more ------------------------------------------------------------- */

active proctype at_rest()
{
    timeout -> d_step {
        assert(len(forward0) == 0 && len(forward1) == 0 && len(reverse) == 0);
        assert(filled[0] == FIRST && filled[1] == SECOND);
        assert(out[0].opened == FIRST && out[1].opened == SECOND);
        assert(out[0].posts == 0 && out[1].posts == 0);
        assert(freed == charged && freed - freed_there <= CREDIT / 2 && buffered == 0)
    }
}
