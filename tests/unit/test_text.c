/* Texts that are shown have no control characters, texts that are sent have no addresses. */

#include "tests/support/peer_text.h"

#include "base/error.h"
#include "base/text.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

static void expect_shown(const char *text, const char *shown)
{
    char out[200];

    assert_int_equal(text_printable(text, strlen(text), out, sizeof out), strlen(shown));
    assert_string_equal(out, shown);
    error_keep("%s", text); /* every error text is cleaned the same way */
    assert_string_equal(error_text(), shown);
}

TEST(test_controls)
{
    expect_shown("plain", "plain");
    expect_shown("", "");
    expect_shown("a\nb\tc\033[31m", "a?b?c?[31m");
    expect_shown("del\x7f", "del?");
    expect_shown("c1 \xc2\x80 \xc2\x85 \xc2\x9b"
                 "31m \xc2\x9f",
                 "c1 ? ? ?31m ?");
    expect_shown("raw \x9b"
                 "31m",
                 "raw ?31m");
    expect_shown("line \xe2\x80\xa8 \xe2\x80\xa9", "line ? ?");
    expect_shown("left \xe2\x80\xae right \xe2\x81\xa6", "left ? right ?");
}

TEST(test_utf8_stays)
{
    static const char *const good[] = {
        "\xc2\xa0",         "Gr\xc3\xbcn",  "\xe4\xb8\xad\xe6\x96\x87",
        "\xf0\x9f\x98\x80", "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf",
        "\xed\x9f\xbf",     "\xee\x80\x80",
    };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect_shown(good[i], good[i]);
}

TEST(test_not_utf8)
{
    expect_shown("\x80", "?");
    expect_shown("\xc3", "?");
    expect_shown("\xc3 x", "? x");
    expect_shown("\xc0\x8a", "??");           /* a line feed of two bytes */
    expect_shown("\xe0\x80\x8a", "???");      /* of three */
    expect_shown("\xed\xa0\x80", "???");      /* half a surrogate pair */
    expect_shown("\xf4\x90\x80\x80", "????"); /* beyond Unicode */
    expect_shown("\xf8\x88\x80\x80\x80", "?????");
    expect_shown("\xff\xfe", "??");
    expect_shown("\xe4\xb8", "??");
    expect_shown("\xe4\xb8\xc3\xbc", "??\xc3\xbc");
}

/* Where the room ends, a whole character does. */
TEST(test_cut)
{
    const char *text = "ab\xc3\xbc\xe4\xb8\xad\xf0\x9f\x98\x80z";
    static const size_t whole[] = {0, 1, 2, 2, 4, 4, 4, 7, 7, 7, 7, 11, 12, 12};

    for (size_t room = 1; room <= sizeof whole / sizeof *whole; room++) {
        char out[16];

        memset(out, 'x', sizeof out);
        assert_int_equal(text_printable(text, strlen(text), out, room), whole[room - 1]);
        assert_memory_equal(out, text, whole[room - 1]);
        assert_int_equal(out[whole[room - 1]], 0);
        assert_int_equal(out[room], 'x');
    }
}

TEST(test_zeros_inside)
{
    char out[8];

    assert_int_equal(text_printable("a\0b", 3, out, sizeof out), 3);
    assert_string_equal(out, "a?b");
}

TEST(test_in_place)
{
    char text[] = "a\xc2\x85\x80"
                  "b\xc3\xbc\n";

    assert_int_equal(text_printable(text, strlen(text), text, sizeof text), 7);
    assert_string_equal(text, "a??b\xc3\xbc?");
}

static void expect_sent(const char *text, const char *sent)
{
    char out[200];

    assert_int_equal(text_for_peer(text, out, sizeof out), strlen(sent));
    assert_string_equal(out, sent);
    assert_no_address(out);
}

TEST(test_addresses)
{
    char text[200];

    expect_sent("copying 16 bytes from 0x7f22e08e0000 to GPU 0 at 0x10000: failed",
                "copying 16 bytes from 0x... to GPU 0 at 0x...: failed");
    expect_sent("0x00007f22e08e0000", "0x...");
    expect_sent("0X7F22E08E0000,0x12345", "0x...,0x...");
    expect_sent("flags 0x02, 0xffff, 0x, (nil)", "flags 0x02, 0xffff, 0x, (nil)");
    expect_sent("12345678 bytes\x7f", "12345678 bytes?");
    snprintf(text, sizeof text, "%p", (void *)text);
    expect_sent(text, "0x...");
}

TEST(test_long_texts)
{
    static char text[5000];
    char out[201];

    for (size_t i = 0; i + 20 < sizeof text; i += 20)
        snprintf(text + i, 21, "bei 0x7f22e08e0000\xc3\xbc");
    assert_in_range(text_for_peer(text, out, sizeof out), 190, 200);
    assert_no_address(out);
    assert_null(strchr(out, '?'));
}

SUITE(.name = "text");
