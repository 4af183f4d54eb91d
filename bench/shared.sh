# What the scripts of this folder share, to be sourced from the top of the tree.

# die WORDS: a problem with how the script was called, or with what it measures.
die()
{
    echo "${0##*/}: $1" >&2
    exit 2
}

# check_rounds VALUE: of --rounds.
check_rounds()
{
    case $1 in
    '' | *[!0-9]* | 0*) die "--rounds $1: expected a number from 1" ;;
    esac
}
