/* How numbers of a measurement are named and written, for all its reports. */
#include "tools/perf.h"

const struct perf_stage perf_stage_list[PERF_STAGE_COUNT] = {
    {"copy_out", "copy out", true, false},         {"send", "send", true, false},
    {"send_wait", "wait for sockets", true, true}, {"receive_wait", "wait for data", false, true},
    {"receive", "receive", false, false},          {"copy_in", "copy in", false, false},
};

static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

enum { LAST_UNIT = sizeof units / sizeof units[0] - 1 };

const char *perf_way_name(enum perf_way way)
{
    return way == PERF_BOTH_WAYS ? "both ways" : way == PERF_PING_PONG ? "ping-pong" : "one way";
}

const char *perf_operation_name(enum perf_operation operation)
{
    return operation == PERF_READS ? "read" : operation == PERF_WRITES ? "write" : "send";
}

const char *perf_check_name(enum perf_check check)
{
    return check == PERF_CHECK_NONE ? "none" : check == PERF_CHECK_FIRST ? "first" : "every";
}

bool perf_contains_barrier(const struct perf_result *result)
{
    return result->operation == PERF_SENDS && result->way != PERF_PING_PONG;
}

const char *perf_size_name(uint64_t bytes, char text[24])
{
    unsigned unit = 0;
    int length;

    while (unit < LAST_UNIT && bytes != 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    length = snprintf(text, 24, "%llu %s", (unsigned long long)bytes, units[unit]);
    return length < 24 ? text : "?"; /* it always fits: more than 17 digits have the unit B */
}

const char *perf_amount_name(double bytes, char text[PERF_NAME])
{
    unsigned unit = 0;

    while (unit < LAST_UNIT && bytes >= 1023.95) {
        bytes /= 1024;
        unit++;
    }
    /* "1.0 KiB" says no more than "1 KiB" */
    if (bytes >= 1e6)
        snprintf(text, PERF_NAME, "%.3g %s", bytes, units[unit]);
    else if (bytes == (double)(unsigned)bytes)
        snprintf(text, PERF_NAME, "%.0f %s", bytes, units[unit]);
    else
        snprintf(text, PERF_NAME, "%.1f %s", bytes, units[unit]);
    return text;
}

bool perf_known(double value)
{
    return __builtin_isfinite(value) && value >= 0;
}

double perf_p99(const struct perf_row *row)
{
    return row->iterations >= 100 ? row->p99_us : -1;
}

double perf_p999(const struct perf_row *row)
{
    return row->iterations >= 1000 ? row->p999_us : -1;
}

double perf_stage_percent(const struct perf_row *row, unsigned stage)
{
    double us = row->stages[stage];

    if (!perf_known(us) || !perf_known(row->mean_us) || row->mean_us == 0)
        return -1;
    return us / row->mean_us * 100;
}

double perf_stage_rate(const struct perf_row *row, unsigned stage)
{
    double us = row->stages[stage];

    if (perf_stage_list[stage].waits || !perf_known(us) || us == 0)
        return -1;
    return (double)row->bytes / us / 1000;
}

bool perf_has_stages(const struct perf_row *row)
{
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        if (perf_known(row->stages[i]) && row->stages[i] > 0)
            return true;
    return false;
}

void perf_print(FILE *out, const struct perf_form *form, const struct perf_result *result)
{
    form->begin(out, result);
    for (unsigned i = 0; i < result->row_count; i++)
        form->row(out, result, i);
    form->end(out, result);
}

double perf_gigabits(const struct perf_row *row)
{
    return perf_known(row->gigabytes_per_second) ? 8 * row->gigabytes_per_second : -1;
}

double perf_line_percent(const struct perf_result *result, const struct perf_row *row)
{
    double directions = result->way == PERF_BOTH_WAYS ? 2 : 1;

    if (result->line_mbps == 0 || !perf_known(row->gigabytes_per_second))
        return -1;
    return perf_gigabits(row) * 1e5 / directions / result->line_mbps;
}

struct perf_total perf_total(const struct perf_result *result)
{
    double directions = result->way == PERF_ONE_WAY ? 1 : 2;
    struct perf_total total = {0};

    for (unsigned i = 0; i < result->row_count; i++) {
        const struct perf_row *row = &result->rows[i];
        uint64_t iterations = result->check == PERF_CHECK_EVERY   ? row->iterations
                              : result->check == PERF_CHECK_FIRST ? 1
                                                                  : 0;

        total.iterations += iterations;
        total.bytes += directions * (double)row->bytes * (double)iterations;
    }
    return total;
}

const char *perf_number(double value, char text[PERF_NAME])
{
    if (!perf_known(value))
        snprintf(text, PERF_NAME, "-");
    else if (value == 0)
        snprintf(text, PERF_NAME, "0");
    else if (value >= 1e12)
        snprintf(text, PERF_NAME, "%.3e", value);
    else
        snprintf(text, PERF_NAME, "%.*f",
                 value < 0.99995  ? 4
                 : value < 9.9995 ? 3
                 : value < 99.995 ? 2
                 : value < 999.95 ? 1
                                  : 0,
                 value);
    return text;
}

const char *perf_percent(double value, char text[PERF_NAME])
{
    if (perf_known(value) && value < 1e12)
        snprintf(text, PERF_NAME, "%.*f", value < 99.95 ? 1 : 0, value);
    else
        perf_number(value, text);
    return text;
}
