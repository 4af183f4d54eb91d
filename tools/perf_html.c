/*
 * The result of a measurement as a page that needs nothing else: no network, no script. Whatever
 * was not written here, such as names of hosts, is escaped.
 */
#include "tools/perf_plot.h"

static const char page_style[] =
    "<style>\n"
    ":root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#182030;--soft:#5d6779;\n"
    "--line:#e4e7ec;--axis:#9aa3b2;--rate:#2563eb;--min:#7fb0f5;--median:#2563eb;--p99:#d9820a;\n"
    "--p999:#cf3030;--max:#98a2b3;--sender:#0d9488;--receiver:#7c4ddb}\n"
    "@media screen and "
    "(prefers-color-scheme:dark){:root{--page:#0e1217;--card:#161b22;--ink:#e8ebf0;\n"
    "--soft:#9aa5b5;--line:#272e38;--axis:#566070;--rate:#5b9bff;--min:#4a7cc4;--median:#6aa5ff;\n"
    "--p99:#eba23a;--p999:#f47272;--max:#5d6779;--sender:#2bb7a9;--receiver:#a583f0}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--page);color:var(--ink);-webkit-print-color-adjust:exact;\n"
    "print-color-adjust:exact;font:15px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,\n"
    "'Helvetica Neue','Noto Sans','Liberation Sans',Arial,sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:56px 32px 64px}\n"
    ".over{margin:0 0 10px;color:var(--soft);font-size:13px;font-weight:600;letter-spacing:.08em;\n"
    "text-transform:uppercase}\n"
    "h1{margin:0;font-size:34px;line-height:1.2;font-weight:650;letter-spacing:-.02em;\n"
    "overflow-wrap:anywhere}\n"
    "h1 span{color:var(--soft);font-weight:400}\n"
    ".lead{margin:14px 0 32px;max-width:46em;font-size:18px;color:var(--soft);\n"
    "overflow-wrap:anywhere}\n"
    ".lead b{color:var(--ink);font-weight:650}.lead b,.lead span{white-space:nowrap}\n"
    ".tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:16px;margin-bottom:16px}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:12px;\n"
    "padding:24px 28px;margin-bottom:16px;box-shadow:0 1px 2px rgba(16,24,40,.04)}\n"
    ".tiles .card{margin:0;padding:18px 20px}\n"
    ".tiles p{margin:0;font-size:13px;color:var(--soft)}\n"
    ".tiles .big{margin:2px 0;font-size:27px;line-height:1.3;font-weight:650;color:var(--ink);\n"
    "letter-spacing:-.01em;white-space:nowrap}\n"
    ".big small{font-size:15px;font-weight:500;color:var(--soft);letter-spacing:0}\n"
    "dl{display:grid;grid-template-columns:repeat(4,1fr);gap:18px 28px;margin:0}\n"
    "dl .wide{grid-column:span 2}\n"
    "dt{font-size:12.5px;color:var(--soft)}\n"
    "dd{margin:0;font-size:14.5px;overflow-wrap:anywhere}\n"
    "h2{margin:0 0 4px;font-size:18px;font-weight:650;letter-spacing:-.01em}\n"
    ".note{margin:0 0 16px;max-width:62em;font-size:13.5px;color:var(--soft)}\n"
    ".legend{float:right;display:flex;gap:18px;margin:4px 0 0;padding:0;list-style:none;\n"
    "font-size:13px;color:var(--soft)}\n"
    ".legend i{display:inline-block;width:16px;height:3px;border-radius:2px;margin-right:7px;\n"
    "vertical-align:middle;background:var(--c)}\n"
    ".plot,.wrap{overflow-x:auto}\n"
    "svg{display:block;width:100%;min-width:680px;height:auto;overflow:visible}\n"
    "svg text{font-size:12.5px;fill:var(--ink);font-variant-numeric:tabular-nums}\n"
    "svg .tick,svg .label,svg .none{fill:var(--soft)}svg .tick{font-size:12px}\n"
    "svg .heading{font-size:13px;font-weight:600}svg .value{font-weight:600}\n"
    "svg .value,svg .name{paint-order:stroke;stroke:var(--card);stroke-width:4px;\n"
    "stroke-linejoin:round}svg .name{fill:var(--c);font-weight:600}\n"
    ".start{text-anchor:start}.middle{text-anchor:middle}.end{text-anchor:end}\n"
    ".grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--axis);stroke-width:1}\n"
    ".c-rate{--c:var(--rate)}.c-min{--c:var(--min)}.c-median{--c:var(--median)}\n"
    ".c-p99{--c:var(--p99)}.c-p999{--c:var(--p999)}.c-max{--c:var(--max)}\n"
    ".c-sender{--c:var(--sender)}.c-receiver{--c:var(--receiver)}\n"
    "path.line{fill:none;stroke:var(--c);stroke-width:2.2;stroke-linejoin:round;\n"
    "stroke-linecap:round}path.area{fill:var(--c);fill-opacity:.09}\n"
    "circle.dot{fill:var(--c);stroke:var(--card);stroke-width:1}\n"
    "circle.ring{fill:var(--card);stroke:var(--c);stroke-width:2.5}\n"
    "rect{fill:var(--c)}rect.waits{fill-opacity:.45}\n"
    "rect.hover{fill:var(--ink);fill-opacity:0}rect.hover:hover{fill-opacity:.05}\n"
    "table{width:100%;border-collapse:collapse;font-size:13px;\n"
    "font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "th,td{padding:6px 0 6px 14px;text-align:right}th{font-weight:600}\n"
    "th:first-child,td:first-child{padding-left:0;text-align:left}\n"
    "thead th{color:var(--soft);font-size:12px;font-weight:500}\n"
    "thead .group th{padding-bottom:0;text-align:left;color:var(--ink);font-weight:600}\n"
    "tbody tr{border-top:1px solid var(--line)}tbody tr:hover{background:var(--page)}\n"
    ".sep{padding-left:26px}\n"
    "footer{margin-top:28px;font-size:13px;color:var(--soft)}\n"
    "@media screen and (max-width:760px){.tiles,dl{grid-template-columns:repeat(2,1fr)}\n"
    "main{padding:28px 14px}.legend{float:none;margin:0 0 12px}}\n"
    "@media print{:root{--page:#fff}body{font-size:12px}main{padding:0}h1{font-size:26px}\n"
    ".lead{margin:8px 0 16px;font-size:14px}.tiles{gap:8px}dl{gap:8px 16px}dd{font-size:12px}\n"
    ".tiles .big{font-size:19px}.tiles p,.big "
    "small,dt,.note{font-size:11px}.card{break-inside:avoid;box-shadow:none}\n"
    ".plot,.wrap{overflow:visible}svg{min-width:0}table{font-size:9px}thead th{font-size:9px}\n"
    "th,td,.sep{padding:2px 0 2px 6px}}\n"
    "</style>\n";

/* --- words --- */

static void page_text(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '"')
            fputs("&quot;", out);
        else if (*text == '\'')
            fputs("&#39;", out);
        else
            fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
    }
}

/* The row that is best by rate; NULL: there is none. */
static const struct perf_row *page_best(const struct perf_result *result)
{
    const struct perf_row *best = NULL;

    for (unsigned i = 0; i < result->row_count; i++) {
        const struct perf_row *row = &result->rows[i];

        if (perf_known(row->gigabytes_per_second) &&
            (best == NULL || row->gigabytes_per_second > best->gigabytes_per_second))
            best = row;
    }
    return best;
}

static const struct perf_row *page_smallest(const struct perf_result *result)
{
    const struct perf_row *smallest = &result->rows[0];

    for (unsigned i = 1; i < result->row_count; i++)
        if (result->rows[i].bytes < smallest->bytes)
            smallest = &result->rows[i];
    return smallest;
}

/* The least size that has half the best rate: from there on size pays. */
static const struct perf_row *page_half(const struct perf_result *result,
                                        const struct perf_row *best)
{
    const struct perf_row *half = best;

    for (unsigned i = 0; i < result->row_count; i++) {
        const struct perf_row *row = &result->rows[i];

        if (row->gigabytes_per_second * 2 >= best->gigabytes_per_second && row->bytes < half->bytes)
            half = row;
    }
    return half;
}

static void page_hosts(FILE *out, const struct perf_result *result, const char *between)
{
    page_text(out, result->client);
    fprintf(out, "%s", between);
    page_text(out, result->server);
}

static void page_route(FILE *out, const struct perf_result *result)
{
    if (result->way == PERF_ONE_WAY) {
        fprintf(out, "one way from ");
        page_hosts(out, result, " to ");
    } else {
        fprintf(out, "%s between ",
                result->way == PERF_BOTH_WAYS ? "both ways together" : "in ping-pong");
        page_hosts(out, result, " and ");
    }
}

static void page_lead(FILE *out, const struct perf_result *result)
{
    const struct perf_row *best = page_best(result);
    const struct perf_row *small;
    char rate[PERF_NAME];
    char size[24];
    char time[PERF_NAME];

    if (result->row_count == 0 || best == NULL) {
        fprintf(out, "<p class=\"lead\">Nothing was measured.</p>\n");
        return;
    }
    small = page_smallest(result);
    fprintf(out, "<p class=\"lead\">%s<b>%s GB/s</b> ", result->row_count > 1 ? "Up to " : "",
            perf_number(best->gigabytes_per_second, rate));
    page_route(out, result);
    fprintf(out, ", with messages of <span>%s</span>; ", perf_size_name(best->bytes, size));
    fprintf(out, "<span>%s take%s</span> <b>%s</b>, the median of %llu.</p>\n",
            result->row_count > 1 ? perf_size_name(small->bytes, size) : "one",
            result->row_count > 1 ? "" : "s", perf_time_name(small->median_us, time),
            (unsigned long long)small->iterations);
}

/* --- tiles --- */

/* The number large, what follows its first space small. */
static void page_tile(FILE *out, const char *title, const char *value, const char *below)
{
    fprintf(out, "<div class=\"card\"><p>%s</p><p class=\"big\">", title);
    while (*value != '\0' && *value != ' ')
        fputc(*value++, out);
    fprintf(out, "<small>%s</small></p><p>%s</p></div>\n", value, below);
}

static void page_verified_tile(FILE *out, const struct perf_result *result)
{
    struct perf_total total = perf_total(result);
    char amount[PERF_NAME];
    char text[64];

    snprintf(text, sizeof text, "%llu iterations, every byte",
             (unsigned long long)total.iterations);
    page_tile(out, "Verified", perf_amount_name(total.bytes, amount), text);
}

static void page_rate_tile(FILE *out, const char *title, const struct perf_row *row)
{
    char value[PERF_NAME + 8];
    char number[PERF_NAME];
    char size[24];
    char text[64];

    snprintf(value, sizeof value, "%s GB/s", perf_number(row->gigabytes_per_second, number));
    snprintf(text, sizeof text, "at %s", perf_size_name(row->bytes, size));
    page_tile(out, title, value, text);
}

static void page_time_tile(FILE *out, const char *title, double us, const char *below)
{
    char time[PERF_NAME];

    page_tile(out, title, perf_time_name(us, time), below);
}

static void page_tiles_of_many(FILE *out, const struct perf_result *result,
                               const struct perf_row *best)
{
    const struct perf_row *small = page_smallest(result);
    char size[24];
    char text[64];

    page_rate_tile(out, "Best bandwidth", best);
    snprintf(text, sizeof text, "median, at %s", perf_size_name(small->bytes, size));
    page_time_tile(out, "Latency of the smallest", small->median_us, text);
    page_tile(out, "Half of it", perf_size_name(page_half(result, best)->bytes, size),
              "the smallest size to reach it");
}

static void page_tiles_of_one(FILE *out, const struct perf_row *row)
{
    char text[64];
    char time[PERF_NAME];

    page_rate_tile(out, "Bandwidth", row);
    snprintf(text, sizeof text, "of %llu iterations", (unsigned long long)row->iterations);
    page_time_tile(out, "Median", row->median_us, text);
    snprintf(text, sizeof text, "slowest %s", perf_time_name(row->most_us, time));
    page_time_tile(out, "Fastest", row->least_us, text);
}

static void page_tiles(FILE *out, const struct perf_result *result)
{
    const struct perf_row *best = page_best(result);

    if (result->row_count == 0 || best == NULL)
        return;
    fprintf(out, "<section class=\"tiles\">\n");
    if (result->row_count == 1)
        page_tiles_of_one(out, &result->rows[0]);
    else
        page_tiles_of_many(out, result, best);
    page_verified_tile(out, result);
    fprintf(out, "</section>\n");
}

/* --- facts --- */

static void page_fact(FILE *out, const char *name, const char *style, const char *value)
{
    fprintf(out, "<div%s><dt>%s</dt><dd>", style, name);
    page_text(out, value[0] != '\0' ? value : "–");
    fprintf(out, "</dd></div>\n");
}

static void page_count(FILE *out, const char *name, unsigned count, const char *none)
{
    char text[16];

    snprintf(text, sizeof text, "%u", count);
    page_fact(out, name, "", count == 0 ? none : text);
}

static void page_facts(FILE *out, const struct perf_result *result)
{
    static const char wide[] = " class=\"wide\"";
    char text[PERF_NAME];

    fprintf(out, "<section class=\"card\"><dl>\n");
    page_fact(out, "Path", wide, result->path);
    page_fact(out, "Memory", wide, result->memory);
    page_fact(out, "Client", "", result->client);
    page_fact(out, "Server", "", result->server);
    page_fact(out, "Direction", "", perf_way_name(result->way));
    page_fact(out, "Unpack", "", result->unpack);
    page_count(out, "Channels", result->channels, "0");
    page_count(out, "Sockets", result->sockets, "0");
    page_count(out, "I/O threads", result->threads, "none");
    page_fact(out, "Chunk size", "",
              result->chunk_bytes != 0 ? perf_size_name(result->chunk_bytes, text) : "none");
    page_count(out, "Pieces", result->pieces, "no lists");
    page_fact(out, "Barrier", "", perf_time_name(result->barrier_us, text));
    page_fact(out, "Version", "", result->version);
    page_fact(out, "Date", wide, result->date);
    fprintf(out, "</dl></section>\n");
}

/* --- plots --- */

static void page_section(FILE *out, const char *title, const char *note)
{
    fprintf(out, "<section class=\"card\">\n<h2>%s</h2>\n<p class=\"note\">%s</p>\n", title, note);
}

static void page_times_note(FILE *out, const struct perf_result *result)
{
    char time[PERF_NAME];

    fprintf(out, "<h2>Latency</h2>\n<p class=\"note\">");
    if (result->way == PERF_PING_PONG)
        fprintf(out, "Half the time of the way there and back. ");
    else
        fprintf(out, "The time of one way, with the barrier&#39;s %s in it. ",
                perf_time_name(result->barrier_us, time));
    fprintf(out, "p99 needs 100 iterations, p99.9 needs 1000.</p>\n");
}

static void page_times(FILE *out, const struct perf_result *result)
{
    fprintf(out, "<section class=\"card\">\n");
    if (result->row_count > 1) {
        fprintf(out, "<ul class=\"legend\">");
        for (unsigned i = 0; i < PERF_LINES; i++)
            if (perf_plot_has_line(result, i))
                fprintf(out, "<li class=\"%s\"><i></i>%s</li>", perf_line_list[i].style,
                        perf_line_list[i].name);
        fprintf(out, "</ul>\n");
    }
    page_times_note(out, result);
    if (result->row_count > 1)
        perf_plot_times(out, result);
    else
        perf_plot_one_times(out, &result->rows[0]);
    fprintf(out, "</section>\n");
}

static void page_stages(FILE *out, const struct perf_result *result)
{
    bool any = false;

    for (unsigned i = 0; i < result->row_count; i++)
        any = any || perf_has_stages(&result->rows[i]);
    if (!any) {
        page_section(out, "Where the time goes",
                     "This path does not say how long its stages take.");
    } else {
        page_section(
            out, "Where the time goes",
            "The mean time of each stage, in percent of the iteration&#39;s median. Stages "
            "go on at the same time, so each is shown by itself: stacked, they would add "
            "up to more time than there was. Pale bars are waits.");
        if (result->row_count > 1)
            perf_plot_stages(out, result);
        else
            perf_plot_one_stages(out, &result->rows[0]);
    }
    fprintf(out, "</section>\n");
}

/* --- numbers --- */

static void page_cell(FILE *out, double value, const char *style, const char *unknown)
{
    char text[PERF_NAME];

    if (perf_known(value))
        fprintf(out, "<td%s>%s</td>", style, perf_number(value, text));
    else
        fprintf(out, "<td%s title=\"%s\">–</td>", style, unknown);
}

static void page_row(FILE *out, const struct perf_row *row)
{
    static const char apart[] = " class=\"sep\"";
    char size[24];

    fprintf(out, "<tr><th scope=\"row\">%s</th><td>%llu</td>", perf_size_name(row->bytes, size),
            (unsigned long long)row->iterations);
    page_cell(out, row->gigabytes_per_second, "", "not measured");
    page_cell(out, row->least_us, apart, "not measured");
    page_cell(out, row->median_us, "", "not measured");
    page_cell(out, row->mean_us, "", "not measured");
    page_cell(out, perf_p99(row), "", "fewer than 100 iterations");
    page_cell(out, perf_p999(row), "", "fewer than 1000 iterations");
    page_cell(out, row->most_us, "", "not measured");
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        page_cell(out, perf_stage_us(row, i), i % 3 == 0 ? apart : "", "not measured");
    fprintf(out, "</tr>\n");
}

static void page_numbers(FILE *out, const struct perf_result *result)
{
    fprintf(out,
            "<section class=\"card\">\n<h2>All numbers</h2>\n"
            "<p class=\"note\">Times in microseconds; GB/s are 10<sup>9</sup> bytes per second of "
            "the median%s.</p>\n<div class=\"wrap\"><table>\n<thead>\n<tr class=\"group\">"
            "<th></th><th></th><th></th><th class=\"sep\" colspan=\"6\">Latency</th>"
            "<th class=\"sep\" colspan=\"3\">Sender</th><th class=\"sep\" "
            "colspan=\"3\">Receiver</th></tr>\n"
            "<tr><th>size</th><th>iterations</th><th>GB/s</th>"
            "<th class=\"sep\">min</th><th>median</th><th>mean</th><th>p99</th><th>p99.9</th>"
            "<th>max</th><th class=\"sep\">copy</th><th>send</th><th>wait</th>"
            "<th class=\"sep\">wait</th><th>receive</th><th>copy</th></tr>\n</thead>\n<tbody>\n",
            result->way == PERF_BOTH_WAYS ? ", both directions together" : "");
    for (unsigned i = 0; i < result->row_count; i++)
        page_row(out, &result->rows[i]);
    fprintf(out, "</tbody>\n</table></div>\n</section>\n");
}

static void page_head(FILE *out, const struct perf_result *result)
{
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<title>tcpx perf: ");
    page_hosts(out, result, result->way == PERF_ONE_WAY ? " to " : " and ");
    fprintf(out, "</title>\n%s</head>\n<body>\n<main>\n", page_style);
    fprintf(out, "<p class=\"over\">tcpx perf, %s</p>\n<h1>", perf_way_name(result->way));
    page_hosts(out, result, result->way == PERF_ONE_WAY ? " <span>→</span> " : " <span>⇄</span> ");
    fprintf(out, "</h1>\n");
}

void perf_print_html(FILE *out, const struct perf_result *result)
{
    page_head(out, result);
    page_lead(out, result);
    page_tiles(out, result);
    page_facts(out, result);
    if (result->row_count > 1) {
        page_section(out, "Bandwidth",
                     "What arrives per second, against the size of a message; the axis of sizes is "
                     "logarithmic.");
        perf_plot_rates(out, result);
        fprintf(out, "</section>\n");
    }
    if (result->row_count > 0) {
        page_times(out, result);
        page_stages(out, result);
        page_numbers(out, result);
    }
    fprintf(out, "<footer>tcpx ");
    page_text(out, result->version);
    fprintf(out, ", ");
    page_text(out, result->date);
    fprintf(out, "</footer>\n</main>\n</body>\n</html>\n");
}
