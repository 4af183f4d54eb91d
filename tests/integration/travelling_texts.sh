# Every address in an error text has the form that base/text.h takes out of what is sent to a peer:
# %p, or a hexadecimal number with 0x. Each check is also shown a text that is wrong.
. tests/tap.sh

# Hexadecimal numbers that are no addresses: of PCI devices, of characters, and of random bytes.
others='"%04x:%02x:%02x.%x"|"%8x:%2x:%2x.%1x"|"\\\\u%04x"|"%02x"'

# hex_without_mark FILE...: conversions to hexadecimal without 0x before them.
hex_without_mark()
{
    sed -E 's/" *PRI([xX])[0-9A-Z]+ *"?/l\1/g; s/0x%[-0-9.*]*(l|ll|z|j|h|hh)?[xX]//g' "$@" |
        grep -nE '%[-0-9.*#]*(l|ll|z|j|h|hh)?[xX]' | grep -vE "$others"
}

# pointers_as_decimals FILE...: statements of errors that name an address and have no place for one.
pointers_as_decimals()
{
    cat "$@" | tr '\n' ' ' | sed 's/;/;\n/g' |
        grep -E '(error_set|error_keep|error_system|error_keep_system|cuda_error)\(' |
        grep -E 'uintptr_t' | grep -vE '%p|0x%'
}

# finds NAME CHECK TEXT
finds()
{
    printf '%s\n' "$3" >"$TAP_WORK/wrong.c"
    check_output "$1" . "$2" "$TAP_WORK/wrong.c"
}

set -- src/*/*.[ch] src/*/*/*.[ch]
check "hexadecimal numbers in texts have 0x before them" quiet hex_without_mark "$@"
check "addresses in texts are hexadecimal" quiet pointers_as_decimals "$@"
finds "a hexadecimal number without 0x is found" hex_without_mark 'error_set(1, "at %llx", at);'
finds "one of inttypes.h is found" hex_without_mark 'error_set(1, "at %" PRIx64 ".", at);'
finds "a decimal address is found" pointers_as_decimals \
    'return error_set(1, "at %llu", (unsigned long long)(uintptr_t)at);'
tap_end
