# Draws src/rooms as an SVG: a box for each room, those that use others above them, and an arrow for
# each use that no other way of arrows says already. Known edges that break a rule are dashed.
# Usage: awk -f picture.awk ROOMS FILES, the latter a list of "file PATH"
#
# Rows are the longest way down. An arrow over several rows passes a place of its own in each, so that
# it crosses no box. The order in the rows has few crossings: each box goes to the mean position of its
# neighbours, row by row, down and up, and the best order of these is kept.

function escape(text)
{
    gsub(/&/, "\\&amp;", text)
    gsub(/</, "\\&lt;", text)
    return text
}

FILENAME != last_file { last_file = FILENAME; inputs++ }
inputs == 1 && (/^[ \t]*#/ || NF == 0) { next }
inputs == 1 && $1 == "known" {
    if ($2 == "use") {
        from = $3
        to = $4
        sub(/\/[^\/]*$/, "", from)
        sub(/\/[^\/]*$/, "", to)
        if (!((from, to) in broken)) {
            broken[from, to] = 1
            broken_list[++broken_count] = from SUBSEP to
        }
    }
    next
}
inputs == 1 {
    for (i = 1; i <= NF; i++) {
        if ($i == "room") {
            room = $(++i)
            name[++rooms] = room
            id[room] = rooms
            what = ""
        } else if ($i == "is" || $i == "shows" || $i == "uses") {
            what = $i
        } else if (what == "is") {
            says[id[room]] = says[id[room]] (says[id[room]] == "" ? "" : " ") $i
        } else if (what == "uses") {
            use[id[room], id[$i]] = 1
        }
    }
    next
}
$1 == "file" {
    room = $2
    sub(/\/[^\/]*$/, "", room)
    if (room in id)
        files[id[room]]++
}

# A room is below what uses it, and the file lists it before: one pass is enough.
function find_rows(    a, b, c)
{
    for (a = 1; a <= rooms; a++)
        for (b = 1; b < a; b++)
            if ((a, b) in use) {
                reach[a, b] = 1
                for (c = 1; c < b; c++)
                    if ((b, c) in reach)
                        reach[a, c] = 1
                if (row[b] + 1 > row[a])
                    row[a] = row[b] + 1
            }
    for (a = 1; a <= rooms; a++)
        if (row[a] > top)
            top = row[a]
    # A room with users only, or one of each, stands right below the lowest of them.
    for (a = rooms; a >= 1; a--) {
        lowest = top + 1
        users = used = 0
        for (b = 1; b <= rooms; b++) {
            if (arrow(b, a)) {
                users++
                if (row[b] < lowest)
                    lowest = row[b]
            }
            used += arrow(a, b)
        }
        if (users && users >= used && lowest - 1 > row[a])
            row[a] = lowest - 1
    }
}

# Whether a uses b, and nothing that a uses does.
function arrow(a, b,    c)
{
    if (!((a, b) in use))
        return 0
    for (c = 1; c <= rooms; c++)
        if (((a, c) in use) && ((c, b) in reach))
            return 0
    return 1
}

function place(node, at)
{
    row[node] = at
    in_row[at, ++row_count[at]] = node
    position[node] = row_count[at]
}

# Arrows as steps from a row to the one below; node numbers beyond the rooms are places on the way.
function find_steps(    a, b, r, from, node)
{
    nodes = rooms
    for (a = 1; a <= rooms; a++)
        place(a, row[a] + 0)
    for (a = 1; a <= rooms; a++)
        for (b = 1; b <= rooms; b++)
            if (arrow(a, b)) {
                from = a
                arrows++
                way[arrows] = a
                for (r = row[a] - 1; r > row[b]; r--) {
                    place(++nodes, r)
                    step(from, nodes)
                    from = nodes
                    way[arrows] = way[arrows] " " nodes
                }
                step(from, b)
                way[arrows] = way[arrows] " " b
            }
}

function step(a, b)
{
    below[a] = below[a] " " b
    above[b] = above[b] " " a
}

function mean_of(list, value,    part, count, i, sum)
{
    count = split(list, part, " ")
    if (count == 0)
        return -1
    for (i = 1; i <= count; i++)
        sum += value[part[i]]
    return sum / count
}

# Sorts a row by the mean position of the neighbours in the row above (or below).
function sort_row(r, list,    i, j, node, key, wish)
{
    for (i = 1; i <= row_count[r]; i++) {
        node = in_row[r, i]
        wish = mean_of(list[node], position)
        key[node] = wish < 0 ? position[node] : wish
    }
    for (i = 2; i <= row_count[r]; i++) {
        node = in_row[r, i]
        for (j = i - 1; j >= 1 && key[in_row[r, j]] > key[node]; j--)
            in_row[r, j + 1] = in_row[r, j]
        in_row[r, j + 1] = node
    }
    for (i = 1; i <= row_count[r]; i++)
        position[in_row[r, i]] = i
}

function crossings(    r, i, j, a, b, m, n, low_a, low_b, total)
{
    for (r = 1; r <= top; r++)
        for (i = 1; i <= row_count[r]; i++)
            for (j = i + 1; j <= row_count[r]; j++) {
                m = split(below[in_row[r, i]], low_a, " ")
                n = split(below[in_row[r, j]], low_b, " ")
                for (a = 1; a <= m; a++)
                    for (b = 1; b <= n; b++)
                        total += position[low_a[a]] > position[low_b[b]]
            }
    return total
}

function find_order(    turn, r, i, best, now)
{
    best = -1
    for (turn = 0; turn < 12; turn++) {
        if (turn % 2)
            for (r = 1; r <= top; r++)
                sort_row(r, below)
        else
            for (r = top - 1; r >= 0; r--)
                sort_row(r, above)
        now = crossings()
        if (best < 0 || now < best) {
            best = now
            for (i = 1; i <= nodes; i++)
                best_position[i] = position[i]
        }
    }
    for (i = 1; i <= nodes; i++) {
        position[i] = best_position[i]
        in_row[row[i], position[i]] = i
    }
}

function width(node)
{
    return node <= rooms ? BOX : WAY
}

function gap(a, b)
{
    return (width(a) + width(b)) / 2 + GAP
}

# Nodes above each other with an arrow that is all that leaves the one and all that reaches the other
# are a column: they have the same place, so that these arrows are straight.
function join_columns(    a, b, old, i, part)
{
    for (a = 1; a <= nodes; a++)
        column[a] = a
    for (a = 1; a <= nodes; a++)
        if (split(below[a], part, " ") == 1) {
            b = part[1]
            old = column[b]
            if (split(above[b], part, " ") == 1)
                for (i = 1; i <= nodes; i++)
                    if (column[i] == old)
                        column[i] = column[a]
        }
    for (a = 1; a <= nodes; a++)
        members[column[a]]++
}

# Packed to the left.
function first_places(    turn, r, i, node, least)
{
    for (turn = 0; turn < nodes; turn++)
        for (r = 0; r <= top; r++)
            for (i = 1; i <= row_count[r]; i++) {
                node = in_row[r, i]
                least = i == 1 ? 0 : x[in_row[r, i - 1]] + gap(in_row[r, i - 1], node)
                if (place_of[column[node]] < least)
                    place_of[column[node]] = least
                x[node] = place_of[column[node]]
            }
}

# Moves a column to the mean of its neighbours, as far as those of its rows let it.
function move_column(c,    n, part, count, i, sum, total, wish, r, other)
{
    for (n = 1; n <= nodes; n++) {
        count = column[n] == c ? split(below[n] above[n], part, " ") : 0
        for (i = 1; i <= count; i++)
            if (column[part[i]] != c) {
                sum += x[part[i]]
                total++
            }
    }
    if (total == 0)
        return
    wish = sum / total
    for (n = 1; n <= nodes; n++)
        if (column[n] == c && position[n] > 1) {
            other = in_row[row[n], position[n] - 1]
            if (wish < x[other] + gap(other, n))
                wish = x[other] + gap(other, n)
        }
    for (n = 1; n <= nodes; n++)
        if (column[n] == c && position[n] < row_count[row[n]]) {
            other = in_row[row[n], position[n] + 1]
            if (wish > x[other] - gap(n, other))
                wish = x[other] - gap(n, other)
        }
    for (n = 1; n <= nodes; n++)
        if (column[n] == c)
            x[n] = wish
}

# Of a row in which each node wants to be where the next one is, none can move: the row does.
function move_row(r,    i, node, sum)
{
    for (i = 1; i <= row_count[r]; i++) {
        node = in_row[r, i]
        if (members[column[node]] > 1)
            return
        if (below[node] above[node] != "")
            sum += mean_of(below[node] above[node], x) - x[node]
    }
    for (i = 1; i <= row_count[r]; i++)
        x[in_row[r, i]] += sum / row_count[r]
}

function find_columns(    turn, r, i, least, most)
{
    join_columns()
    first_places()
    for (turn = 0; turn < 60; turn++) {
        for (i = 1; i <= nodes; i++)
            if (column[i] == i)
                move_column(i)
        for (r = 0; r <= top; r++)
            move_row(r)
    }
    least = most = x[1]
    for (i = 1; i <= nodes; i++) {
        if (x[i] - width(i) / 2 < least)
            least = x[i] - width(i) / 2
        if (x[i] + width(i) / 2 > most)
            most = x[i] + width(i) / 2
    }
    for (i = 1; i <= nodes; i++)
        x[i] = int(x[i] - least + MARGIN + 0.5)
    total_width = int(most - least + 2 * MARGIN + 0.5)
}

function y_of(r)
{
    return MARGIN + (top - r) * (HEIGHT + SPACE)
}

# Where an arrow leaves a box or reaches it: beside those that go to nodes further left or right.
function port(node, list, other,    part, count, i, rank)
{
    if (node > rooms)
        return x[node]
    count = split(list, part, " ")
    for (i = 1; i <= count; i++)
        if (x[part[i]] < x[other] || (x[part[i]] == x[other] && part[i] < other))
            rank++
    return int(x[node] + (rank - (count - 1) / 2) * PORT + 0.5)
}

function draw_arrow(list,    node, count, i, path, x1, y1, x2, y2, middle)
{
    count = split(list, node, " ")
    for (i = 1; i < count; i++) {
        x1 = port(node[i], below[node[i]], node[i + 1])
        x2 = port(node[i + 1], above[node[i + 1]], node[i])
        y1 = y_of(row[node[i]]) + HEIGHT
        y2 = y_of(row[node[i + 1]])
        middle = (y1 + y2) / 2
        if (i == 1)
            path = "M" x1 " " y1
        path = path " C" x1 " " middle " " x2 " " middle " " x2 " " y2
        if (i + 1 < count)
            path = path " V" (y2 + HEIGHT)
    }
    print "  <path class=\"use\" d=\"" path "\"/>"
}

# From the right side of a box to that of the other; boxes between them hide it.
function draw_broken(a, b,    x1, y1, x2, y2, out)
{
    x1 = x[a] + BOX / 2
    x2 = x[b] + BOX / 2
    y1 = y_of(row[a]) + HEIGHT / 2
    y2 = y_of(row[b]) + HEIGHT / 2
    out = (x1 > x2 ? x1 : x2) + 50
    print "  <path class=\"broken\" d=\"M" x1 " " y1 " C" out " " y1 " " out " " y2 " " x2 " " y2 "\"/>"
}

function draw_room(a,    left, y)
{
    left = x[a] - BOX / 2
    y = y_of(row[a])
    print "  <rect class=\"" (name[a] ~ /^net(\/|$)/ ? "net" : "other") "\" x=\"" left "\" y=\"" y \
        "\" width=\"" BOX "\" height=\"" HEIGHT "\" rx=\"7\"/>"
    print "  <text class=\"name\" x=\"" (left + 12) "\" y=\"" (y + 21) "\">" escape(name[a]) "</text>"
    print "  <text class=\"count\" x=\"" (left + BOX - 12) "\" y=\"" (y + 21) "\">" \
        files[a] + 0 (files[a] == 1 ? " file" : " files") "</text>"
    print "  <text class=\"says\" x=\"" (left + 12) "\" y=\"" (y + 40) "\">" escape(says[a]) "</text>"
}

END {
    BOX = 230
    HEIGHT = 52
    WAY = 10
    GAP = 22
    SPACE = 34
    PORT = 26
    MARGIN = 20
    find_rows()
    find_steps()
    find_order()
    find_columns()
    total_height = 2 * MARGIN + (top + 1) * (HEIGHT + SPACE) - SPACE
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " total_width " " total_height \
        "\" font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"12\" role=\"img\"" \
        " aria-label=\"The folders of src and which of them use which\">"
    print "  <!-- made by `make graph` of src/rooms -->"
    print "  <style>"
    print "    .page { fill: #ffffff; }"
    print "    .net { fill: #e3edfb; stroke: #3b78c3; stroke-width: 1.5; }"
    print "    .other { fill: #f4f1ea; stroke: #8a7a5c; stroke-width: 1.5; }"
    print "    text { fill: #1d2b3a; }"
    print "    .name { font-size: 15px; font-weight: 600; }"
    print "    .says { fill: #44566a; }"
    print "    .count { fill: #44566a; text-anchor: end; }"
    print "    .use { stroke: #5a6b7d; stroke-width: 1.6; fill: none; marker-end: url(#head); }"
    print "    .head { fill: #5a6b7d; }"
    print "    .broken { stroke: #c5352b; stroke-width: 1.6; stroke-dasharray: 5 4; fill: none; marker-end: url(#bad); }"
    print "    .bad { fill: #c5352b; }"
    print "    @media (prefers-color-scheme: dark) {"
    print "      .page { fill: #14191f; }"
    print "      .net { fill: #1c3350; stroke: #5d9be6; }"
    print "      .other { fill: #2b2820; stroke: #a89775; }"
    print "      text { fill: #e8edf2; }"
    print "      .says, .count { fill: #b4c0cc; }"
    print "      .use { stroke: #93a3b3; }"
    print "      .head { fill: #93a3b3; }"
    print "      .broken { stroke: #ff7a6e; }"
    print "      .bad { fill: #ff7a6e; }"
    print "    }"
    print "  </style>"
    print "  <defs>"
    print "    <marker id=\"head\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"6\" markerHeight=\"6\"" \
        " orient=\"auto\"><path class=\"head\" d=\"M0 0L10 5L0 10z\"/></marker>"
    print "    <marker id=\"bad\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"6\" markerHeight=\"6\"" \
        " orient=\"auto\"><path class=\"bad\" d=\"M0 0L10 5L0 10z\"/></marker>"
    print "  </defs>"
    print "  <rect class=\"page\" width=\"" total_width "\" height=\"" total_height "\" rx=\"10\"/>"
    for (i = 1; i <= arrows; i++)
        draw_arrow(way[i])
    for (i = 1; i <= broken_count; i++) {
        split(broken_list[i], part, SUBSEP)
        draw_broken(id[part[1]], id[part[2]])
    }
    for (i = 1; i <= rooms; i++)
        draw_room(i)
    print "</svg>"
}
