# Judges the facts of facts.sh by the rules of the file src/rooms, and prints what breaks them.
# Usage: awk -f rules.awk ROOMS FACTS
#
# A line is "room NAME", "RULE FROM TO: why" or "done"; files are relative to src. The rules:
#   use       a file includes or calls one of a room that its own room may not use
#   private   a file includes a header that the other room does not show
#   cycle     files of one room need each other: sources by symbols, headers by includes
#   declared  a symbol is declared neither in the header of its file, NAME.h for NAME.c, nor in one that
#             its room shows by name, nor in a public one
#   stale     src/rooms has something that is not there (any more)
#   unlisted  a file is in a folder that is no room

function violation(rule, from, to, why)
{
    if ((rule, from, to) in known) {
        needed[rule, from, to] = 1
        return
    }
    if ((rule, from, to) in found)
        return
    found[rule, from, to] = 1
    print rule, from, to ": " why
}

function room_of(path)
{
    if (!sub(/\/[^\/]*$/, "", path))
        return "."
    return path
}

function base_of(path)
{
    sub(/.*\//, "", path)
    return path
}

function bad_rooms(why)
{
    print "stale src/rooms " FNR ": " why
}

# --- src/rooms -----------------------------------------------------------------------------------

FILENAME != last_file { last_file = FILENAME; inputs++ }
inputs == 1 && (/^[ \t]*#/ || NF == 0) { next }
# A room may go on in further lines.
inputs == 1 && ($1 == "room" || $1 == "is" || $1 == "shows" || $1 == "uses") {
    for (i = 1; i <= NF; i++) {
        if ($i == "room") {
            room = $(++i)
            level[room] = 1
            print "room", room
            what = ""
        } else if ($i == "is" || $i == "shows" || $i == "uses") {
            what = $i
        } else if (what == "shows") {
            shows[room, $i] = 1
            shown[++shown_count] = room SUBSEP $i
        } else if (what == "uses") {
            if (!($i in level) || $i == room)
                bad_rooms("room " room " uses " $i ", which is not a room below it")
            uses[room, $i] = 1
            permitted[++permitted_count] = room SUBSEP $i
        } else if (what != "is") {
            bad_rooms("after a room come shows, uses or is, not " $i)
        }
    }
    next
}
inputs == 1 && $1 == "known" && NF == 4 {
    known[$2, $3, $4] = 1
    known_list[++known_count] = $2 SUBSEP $3 SUBSEP $4
    next
}
inputs == 1 { bad_rooms("neither a room nor a known edge: " $0); next }

# --- facts ---------------------------------------------------------------------------------------

$1 == "file" { files[++file_count] = $2; is_file[$2] = 1; next }
$1 == "include" { include_from[++include_count] = $2; include_to[include_count] = $3; next }
$1 == "defines" {
    definer[$3] = $2
    define_file[++define_count] = $2
    define_name[define_count] = $3
    next
}
$1 == "needs" { need_from[++need_count] = $2; need_name[need_count] = $3; next }
$1 == "word" {
    declares[$2, $3] = 1
    if ($2 ~ /^public\//)
        is_public[$3] = 1
    else
        words_in[$3] = words_in[$3] " " $2
    next
}

# --- rules ---------------------------------------------------------------------------------------

# An edge between files of two rooms; why says by what.
function cross(from, to, why,    a, b)
{
    a = room_of(from)
    b = room_of(to)
    used[a, b] = 1
    if (!((a, b) in uses))
        violation("use", from, to, why ", but room " a " may not use " b)
}

# An edge between files of a room, for the search of cycles.
function inside(from, to, why)
{
    if (from == to || ((from, to) in reason))
        return
    reason[from, to] = why
    after[from] = after[from] " " to
}

# Depth first; what leads back to a file that is being visited closes a cycle.
function visit(file,    next_files, count, i, to, j, path)
{
    state[file] = "open"
    stack[++depth] = file
    count = split(after[file], next_files, " ")
    for (i = 1; i <= count; i++) {
        to = next_files[i]
        if (("cycle", file, to) in known)
            continue
        if (state[to] == "open") {
            path = ""
            for (j = depth; stack[j] != to; j--)
                ;
            for (; j < depth; j++)
                path = path ", " stack[j] " " reason[stack[j], stack[j + 1]]
            violation("cycle", file, to, reason[file, to] path)
        } else if (state[to] == "") {
            visit(to)
        }
    }
    depth--
    state[file] = "closed"
}

# Whether one file leads to another, over known edges too.
function leads(from, to,    queue, head, tail, seen, count, i, next_files)
{
    queue[tail = 1] = from
    for (head = 1; head <= tail; head++) {
        count = split(after[queue[head]], next_files, " ")
        for (i = 1; i <= count; i++) {
            if (next_files[i] == to)
                return 1
            if (!(next_files[i] in seen)) {
                seen[next_files[i]] = 1
                queue[++tail] = next_files[i]
            }
        }
    }
    return 0
}

END {
    for (i = 1; i <= file_count; i++)
        if (!(room_of(files[i]) in level))
            violation("unlisted", files[i], room_of(files[i]), "its folder is not a room of src/rooms")

    for (i = 1; i <= include_count; i++) {
        from = include_from[i]
        to = include_to[i]
        if (!(to in is_file))
            to = room_of(from) "/" to
        if (!(to in is_file))
            continue
        if (room_of(from) != room_of(to)) {
            cross(from, to, "includes it")
            if (!((room_of(to), base_of(to)) in shows) && !((room_of(to), "*") in shows))
                violation("private", from, to, "room " room_of(to) " does not show this header")
        } else if (from ~ /\.h$/) {
            inside(from, to, "includes " to)
        }
    }

    for (i = 1; i <= need_count; i++) {
        if (!(need_name[i] in definer))
            continue
        from = need_from[i]
        to = definer[need_name[i]]
        if (room_of(from) != room_of(to))
            cross(from, to, "needs " need_name[i])
        else
            inside(from, to, "needs " need_name[i] " of " to)
    }

    for (i = 1; i <= file_count; i++)
        if (state[files[i]] == "")
            visit(files[i])

    for (i = 1; i <= define_count; i++) {
        file = define_file[i]
        name = define_name[i]
        own = file
        sub(/c$/, "h", own)
        if (((own, name) in declares) || (name in is_public))
            continue
        # The header that has it instead, of the same room where there is one.
        where = "-"
        count = split(words_in[name], candidates, " ")
        for (j = 1; j <= count; j++) {
            if (where == "-" || (room_of(candidates[j]) == room_of(file) && room_of(where) != room_of(file)))
                where = candidates[j]
            if (room_of(candidates[j]) == room_of(file) && ((room_of(file), base_of(candidates[j])) in shows))
                break
        }
        if (j > count)
            violation("declared", file, where, name " is not declared in " own)
    }

    for (i = 1; i <= permitted_count; i++) {
        split(permitted[i], part, SUBSEP)
        if (!((part[1], part[2]) in used))
            violation("stale", part[1], part[2], "src/rooms lists this use, and nothing needs it")
    }
    for (i = 1; i <= shown_count; i++) {
        split(shown[i], part, SUBSEP)
        if (part[2] != "*" && !((part[1] "/" part[2]) in is_file))
            violation("stale", part[1], part[2], "src/rooms shows this header, which does not exist")
    }
    for (i = 1; i <= known_count; i++) {
        split(known_list[i], part, SUBSEP)
        if (part[1] == "cycle" && ((part[2], part[3]) in reason) && leads(part[3], part[2]))
            continue
        if (!((part[1], part[2], part[3]) in needed))
            violation("stale", part[2], part[3], "remove the line 'known " part[1] " " part[2] " " part[3] "'")
    }
    print "done"
}
