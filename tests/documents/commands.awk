# The commands that a document shows, each on a line: all of a block ```sh, and what is behind a prompt
# in a block ```console, without what is said behind a #. Lines that end with a backslash are joined. A block
# without a language is an error.

/^```/ {
    if (inside) {
        inside = 0
    } else {
        inside = 1
        language = substr($0, 4)
        if (language == "") {
            print FILENAME ":" FNR ": a block without a language: sh, console, text, C or python" >"/dev/stderr"
            failed = 1
        }
    }
    next
}

!inside || (language != "sh" && language != "console") { next }

language == "console" && !joined && !sub(/^[a-z]*\$ /, "") { next }

/\\$/ { joined = joined substr($0, 1, length($0) - 1); next }

{
    command = joined $0
    joined = ""
    sub(/ +# .*/, "", command)
    print command
}

END { exit failed }
