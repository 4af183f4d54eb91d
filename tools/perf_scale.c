/* Scales of plots. The logarithm is our own: libm would be a library more for three plots. */
#include "tools/perf_scale.h"
#include "tools/perf_report.h"

enum { LINEAR_STEPS = 5, DECADE_TICKS = 8, SIZE_TICKS = 15, FRACTION_BITS = 24 };

static const double LOG2_OF_10 = 3.321928094887362;

/* Of a finite number above 0; good to FRACTION_BITS. */
static double log2_of(double value)
{
    double result = 0;
    double bit = 0.5;

    while (value >= 2) {
        value /= 2;
        result++;
    }
    while (value < 1) {
        value *= 2;
        result--;
    }
    /* squaring doubles the logarithm, and so brings its next binary digit before the point */
    for (int i = 0; i < FRACTION_BITS; i++, bit /= 2) {
        value *= value;
        if (value >= 2) {
            value /= 2;
            result += bit;
        }
    }
    return result;
}

static double whole_below(double value)
{
    int whole = (int)value;

    return whole > value ? whole - 1 : whole;
}

static double whole_above(double value)
{
    return -whole_below(-value);
}

static double clamp(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* The scales' limits keep everything far from the ends of what a double can hold. */
static double tame(double value)
{
    return perf_known(value) ? clamp(value, 0, 1e200) : 0;
}

static void add_tick(struct perf_scale *scale, double value)
{
    if (scale->tick_count < PERF_MOST_TICKS)
        scale->ticks[scale->tick_count++] = value;
}

double perf_scale_at(const struct perf_scale *scale, double value)
{
    value = tame(value);
    if (scale->logarithmic)
        value = value > 0 ? log2_of(value) : scale->low;
    value = clamp(value, scale->low, scale->high);
    return scale->from +
           (value - scale->low) / (scale->high - scale->low) * (scale->to - scale->from);
}

/* 1, 2, 5, 10, 20, 50 ... and 0.5, 0.2, 0.1 ...: the least that is not below `value`. */
static double round_step(double value)
{
    static const double steps[] = {1, 2, 5};
    double power = 1;

    while (power > value)
        power /= 10;
    while (power * 10 <= value)
        power *= 10;
    for (unsigned i = 0; i < 3; i++)
        if (steps[i] * power >= value * (1 - 1e-9))
            return steps[i] * power;
    return 10 * power;
}

struct perf_scale perf_scale_linear(double most, double from, double to)
{
    struct perf_scale scale = {.from = from, .to = to};
    double high = tame(most) > 1e-200 ? tame(most) : 1;
    double step = round_step(high / LINEAR_STEPS);

    for (unsigned i = 0; scale.high < high * (1 - 1e-9) || i == 0; i++) {
        add_tick(&scale, i * step);
        scale.high = (i + 1) * step;
    }
    add_tick(&scale, scale.high);
    return scale;
}

static double power_of_ten(int exponent)
{
    double power = 1;

    for (; exponent > 0; exponent--)
        power *= 10;
    for (; exponent < 0; exponent++)
        power /= 10;
    return power;
}

/* 1, 2 or 5 times a power of ten: the greatest that is not above `value`. */
static double round_below(double value)
{
    double power = power_of_ten((int)whole_below(log2_of(value) / LOG2_OF_10 + 1e-6));

    return value >= 5 * power * (1 - 1e-6)   ? 5 * power
           : value >= 2 * power * (1 - 1e-6) ? 2 * power
                                             : power;
}

struct perf_scale perf_scale_decades(double least, double most, double from, double to)
{
    static const double between[] = {1, 2, 5};
    struct perf_scale scale = {.logarithmic = true, .from = from, .to = to};
    double bottom = clamp(tame(least) > 0 ? tame(least) : 1, 1e-200, 1e200);
    double top = tame(most) > bottom ? tame(most) : bottom;
    /* values that are nearly the same lie in the middle */
    double low = round_below(top < bottom * 1.5 ? bottom / 2 : bottom);
    double high = round_step(top < bottom * 1.5 ? top * 2 : top);
    int first = (int)whole_below(log2_of(low) / LOG2_OF_10 + 1e-6);
    int last = (int)whole_above(log2_of(high) / LOG2_OF_10 - 1e-6);
    int step = 1 + (last - first) / DECADE_TICKS;
    unsigned ticks_per_decade = high <= low * 200 ? 3 : 1;

    for (int i = first; i <= last; i += step) {
        for (unsigned k = 0; k < ticks_per_decade; k++) {
            double tick = between[k] * power_of_ten(i);

            if (tick >= low * (1 - 1e-6) && tick <= high * (1 + 1e-6))
                add_tick(&scale, tick);
        }
    }
    scale.low = log2_of(low);
    scale.high = log2_of(high);
    return scale;
}

struct perf_scale perf_scale_sizes(uint64_t least, uint64_t most, bool zero, double from, double to)
{
    static const int steps[] = {1, 2, 5, 10};
    struct perf_scale scale = {.logarithmic = true, .from = from, .to = to};
    int first = (int)whole_below(log2_of(least > 0 ? (double)least : 1));
    int last = (int)whole_above(log2_of(most > 0 ? (double)most : 1) - 1e-6);
    unsigned choice = 0;

    if (last <= first) {
        first--;
        last++;
    }
    while (choice < 3 && (last - first) / steps[choice] >= SIZE_TICKS)
        choice++;
    scale.low = zero ? first - 1 : first;
    scale.high = last;
    if (zero)
        add_tick(&scale, 0);
    for (int i = first; i <= last && i < 64; i++)
        if (i >= 0 && i % steps[choice] == 0)
            add_tick(&scale, (double)((uint64_t)1 << i));
    return scale;
}
