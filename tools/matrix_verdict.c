/* Who is slow: ranks, hosts and links, by the rule of tools/matrix.h. */
#include "tools/matrix.h"

#include <stdlib.h>
#include <string.h>

enum { WORST = 8 }; /* links of a phase that are named: the slowest */

const char *matrix_phase_name(enum matrix_phase phase)
{
    return phase == MATRIX_ALONE ? "alone" : "all at once";
}

const char *matrix_rank_name(const struct matrix_result *result, unsigned rank, char text[96])
{
    snprintf(text, 96, "rank %u (%s)", rank, result->rank[rank].host);
    return text;
}

/* --- medians ------------------------------------------------------------------------------- */

static int compare_rates(const void *left, const void *right)
{
    const double *a = left;
    const double *b = right;

    return (*a > *b) - (*a < *b);
}

double matrix_median(double *list, unsigned count)
{
    unsigned known = 0;

    for (unsigned i = 0; i < count; i++)
        if (list[i] >= 0)
            list[known++] = list[i];
    if (known == 0)
        return -1;
    qsort(list, known, sizeof *list, compare_rates);
    return list[known / 2];
}

/* Which pairs a median is of: those of a reader and a source, each of which may be any, without one
 * rank or one link. */
enum { ANY = -1 };

struct selection {
    int reader;
    int source;
    int without_rank;
    int without_reader; /* of the link from without_source */
    int without_source;
};

static int first_of(int rank)
{
    return rank == ANY ? 0 : rank;
}

static int end_of(int rank, int ranks)
{
    return rank == ANY ? ranks : rank + 1;
}

static double median_of(const struct matrix_result *result, const struct matrix_rates *rates,
                        const struct selection *selection)
{
    static double list[MATRIX_MOST_RANKS * MATRIX_MOST_RANKS];
    int ranks = (int)result->ranks;
    unsigned count = 0;

    for (int i = first_of(selection->reader); i < end_of(selection->reader, ranks); i++)
        for (int k = first_of(selection->source); k < end_of(selection->source, ranks); k++)
            if (i != k && selection->without_rank != i && selection->without_rank != k &&
                (selection->without_reader != i || selection->without_source != k))
                list[count++] = rates->list[i][k];
    return matrix_median(list, count);
}

static double median_without_rank(const struct matrix_result *result,
                                  const struct matrix_rates *rates, int rank)
{
    return median_of(result, rates, &(struct selection){ANY, ANY, rank, ANY, ANY});
}

static double median_of_reader(const struct matrix_result *result, const struct matrix_rates *rates,
                               int rank, int without_source)
{
    return median_of(result, rates, &(struct selection){rank, ANY, ANY, rank, without_source});
}

static double median_of_source(const struct matrix_result *result, const struct matrix_rates *rates,
                               int rank, int without_reader)
{
    return median_of(result, rates, &(struct selection){ANY, rank, ANY, without_reader, rank});
}

static bool is_below(double rate, double usual, int percent)
{
    return rate >= 0 && usual > 0 && rate * 100 < usual * percent;
}

/* --- ranks and hosts ----------------------------------------------------------------------- */

struct slow_rank {
    bool sends;
    bool receives;
    double rate;
    double usual;
};

static bool rank_is_slow(const struct slow_rank *slow)
{
    return slow->sends || slow->receives;
}

static struct slow_rank look_at_rank(const struct matrix_result *result, enum matrix_phase phase,
                                     int rank)
{
    const struct matrix_rates *rates = &result->rates[phase];
    int percent = result->rank_percent[phase];
    double usual = median_without_rank(result, rates, rank);
    double in = median_of_reader(result, rates, rank, ANY);
    double out = median_of_source(result, rates, rank, ANY);

    return (struct slow_rank){.sends = is_below(out, usual, percent),
                              .receives = is_below(in, usual, percent),
                              .rate = out >= 0 && (in < 0 || out < in) ? out : in,
                              .usual = usual};
}

static struct matrix_finding *add_finding(struct matrix_result *result,
                                          const struct matrix_finding *finding)
{
    if (result->finding_count == MATRIX_MOST_FINDINGS)
        return NULL;
    result->findings[result->finding_count] = *finding;
    return &result->findings[result->finding_count++];
}

static bool on_one_host(const struct matrix_result *result, unsigned a, unsigned b)
{
    return strcmp(result->rank[a].host, result->rank[b].host) == 0;
}

/* Whether all ranks of its host are slow, of which there are several, and others elsewhere. */
static bool host_is_slow(const struct matrix_result *result, const struct slow_rank *slow,
                         unsigned rank, bool *is_first, unsigned *here)
{
    bool all = true;
    bool elsewhere = false;

    *here = 0;
    *is_first = true;
    for (unsigned i = 0; i < result->ranks; i++) {
        if (!on_one_host(result, i, rank)) {
            elsewhere = true;
            continue;
        }
        *is_first = *is_first && i >= rank;
        all = all && rank_is_slow(&slow[i]);
        ++*here;
    }
    return all && elsewhere && *here > 1;
}

static const char *direction_text(const struct slow_rank *slow)
{
    return slow->sends && slow->receives ? "sends and receives"
           : slow->sends                 ? "sends"
                                         : "receives";
}

static void name_rank(struct matrix_result *result, enum matrix_phase phase,
                      const struct slow_rank *slow, unsigned rank)
{
    const struct slow_rank *own = &slow[rank];
    bool is_first;
    unsigned here;
    bool is_host = host_is_slow(result, slow, rank, &is_first, &here);
    struct matrix_finding *finding;
    char name[96];

    if (is_host && !is_first)
        return;
    finding = add_finding(
        result, &(struct matrix_finding){.phase = phase,
                                         .kind = is_host ? MATRIX_SLOW_HOST : MATRIX_SLOW_RANK,
                                         .rank = rank,
                                         .sends = own->sends,
                                         .receives = own->receives,
                                         .rate = own->rate,
                                         .usual = own->usual});
    if (finding == NULL)
        return;
    if (is_host)
        snprintf(name, sizeof name, "host %s, all %u ranks of it,", result->rank[rank].host, here);
    else
        matrix_rank_name(result, rank, name);
    snprintf(finding->text, sizeof finding->text,
             "%s: %s %s slowly: median %.3g GB/s, and %.3g between the others%s",
             matrix_phase_name(phase), name, direction_text(own), own->rate, own->usual,
             !is_host && here > 1 && here < result->ranks
                 ? "; other ranks of its host are not slow: look at its NIC, GPU and CPUs"
                 : "");
}

/* --- links --------------------------------------------------------------------------------- */

/* What the link from source to reader is compared with; below 0: nothing. */
static double usual_of_link(const struct matrix_result *result, const struct matrix_rates *rates,
                            unsigned reader, unsigned source)
{
    double in = median_of_reader(result, rates, (int)reader, (int)source);
    double out = median_of_source(result, rates, (int)source, (int)reader);

    if (in < 0 && out < 0)
        return rates->list[source][reader];
    if (in < 0 || out < 0)
        return in > out ? in : out;
    return in < out ? in : out;
}

static void name_link(struct matrix_result *result, enum matrix_phase phase, unsigned reader,
                      unsigned source, double usual)
{
    double rate = result->rates[phase].list[reader][source];
    struct matrix_finding *finding =
        add_finding(result, &(struct matrix_finding){.phase = phase,
                                                     .kind = MATRIX_SLOW_LINK,
                                                     .rank = reader,
                                                     .source = source,
                                                     .rate = rate,
                                                     .usual = usual});
    char from[96];
    char to[96];

    if (finding != NULL)
        snprintf(finding->text, sizeof finding->text,
                 "%s: the link from %s to %s is slow: %.3g GB/s, and %.3g over other links of both",
                 matrix_phase_name(phase), matrix_rank_name(result, source, from),
                 matrix_rank_name(result, reader, to), rate, usual);
}

static void name_links(struct matrix_result *result, enum matrix_phase phase,
                       const struct slow_rank *slow)
{
    const struct matrix_rates *rates = &result->rates[phase];
    unsigned named = 0;

    for (unsigned i = 0; i < result->ranks; i++)
        for (unsigned k = 0; k < result->ranks; k++) {
            double usual;

            if (i == k || rates->list[i][k] < 0 || slow[i].receives || slow[k].sends)
                continue;
            usual = usual_of_link(result, rates, i, k);
            if (is_below(rates->list[i][k], usual, result->link_percent[phase]) && named++ < WORST)
                name_link(result, phase, i, k, usual);
        }
}

/* --- passes -------------------------------------------------------------------------------- */

static int least_percent(int one, int other)
{
    int least = one < other ? one : other;

    return least > MATRIX_LEAST_PERCENT ? least : MATRIX_LEAST_PERCENT;
}

/* The better one of each pair: what disturbs a measurement makes it slower. */
static void combine_passes(struct matrix_result *result, unsigned phase)
{
    static double differences[MATRIX_MOST_RANKS * MATRIX_MOST_RANKS];
    unsigned count = 0;
    double noise;

    for (unsigned i = 0; i < result->ranks; i++)
        for (unsigned k = 0; k < result->ranks; k++) {
            double one = result->passes[phase][0].list[i][k];
            double other = result->passes[phase][1].list[i][k];
            double best = one > other ? one : other;

            result->rates[phase].list[i][k] = best;
            if (one >= 0 && other >= 0 && best > 0)
                differences[count++] = (one > other ? one - other : other - one) / best;
        }
    noise = matrix_median(differences, count);
    result->noise_percent[phase] = noise > 0 ? (int)(noise * 100 + 0.5) : 0;
    result->rank_percent[phase] =
        least_percent(MATRIX_RANK_PERCENT, 100 - 3 * result->noise_percent[phase]);
    result->link_percent[phase] =
        least_percent(MATRIX_LINK_PERCENT, 100 - 3 * result->noise_percent[phase]);
}

void matrix_find_slow(struct matrix_result *result)
{
    static struct slow_rank slow[MATRIX_MOST_RANKS];

    result->finding_count = 0;
    for (unsigned phase = 0; phase < MATRIX_PHASES; phase++) {
        combine_passes(result, phase);
        for (unsigned i = 0; i < result->ranks; i++)
            slow[i] = look_at_rank(result, (enum matrix_phase)phase, (int)i);
        for (unsigned i = 0; i < result->ranks; i++)
            if (rank_is_slow(&slow[i]))
                name_rank(result, (enum matrix_phase)phase, slow, i);
        name_links(result, (enum matrix_phase)phase, slow);
    }
}
