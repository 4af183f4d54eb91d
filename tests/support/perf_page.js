/*
 * What the script of tools/perf_page.html draws, without a browser: node. With arguments these are pages
 * of `tcpx perf --html` to draw. Without, it prints TAP: that numbers read and lie as they should, that a
 * number which is not there is said to be missing, and that no value and no name breaks the page: its
 * tags are balanced, it needs nothing from elsewhere, and all that is drawn lies inside the plots.
 */
"use strict";
const assert = require("assert");
const fs = require("fs");

const scriptOf = text => text.match(/<script>([^]*)<\/script>/)[1];

/* The title and what the script puts into the page. */
function draw(text, json) {
    const main = {innerHTML: ""};
    const shown = {title: "", getElementById: () => ({textContent: json}), querySelector: () => main};

    Function("document", scriptOf(text))(shown);
    return `<title>${script.escaped(shown.title)}</title>\n<main>\n${main.innerHTML}</main>\n`;
}

const template = fs.readFileSync("tools/perf_page.html", "utf8");
const script = Function(`${scriptOf(template)}
    return {amountName, decades, escaped, linear, number, short, sizeName, sizes, timeName};`)();

if (process.argv.length > 2) {
    for (const path of process.argv.slice(2)) {
        const text = fs.readFileSync(path, "utf8");
        process.stdout.write(draw(text, text.match(/<script id="result" type="application\/json">([^<]*)</)[1]));
    }
    process.exit();
}

/* --- results --- */

const row = (bytes, iterations, rate, min, median, mean, p99, p999, max, stages) => ({
    bytes, iterations, gigabytes_per_second: rate, min_us: min, median_us: median, mean_us: mean,
    p99_us: p99, p99_9_us: p999, max_us: max, line_rate_percent: null,
    stages_us: Object.fromEntries(["copy_out", "send", "send_wait", "receive_wait", "receive", "copy_in"]
        .map((key, i) => [key, stages[i]])),
});
const rowOf = (bytes, value) => row(bytes, 5000, value, value, value, value, value, value, value, Array(6).fill(value));

/* Two sizes: one with all percentiles, one with too few iterations for any. */
const small = () => ({
    check: "every", complete: true, incomplete_because: "", sizes: 2, line_rate_gigabits_per_second: null,
    version: "1.2.3", date: "2026-01-02T03:04:05Z", way: "one way", client: "left", server: "right",
    path: "192.0.2.7: built-in transport over eth0,eth1, 2 channels", memory: "GPU 0 to GPU 1", unpack: "auto",
    channels: 2, sockets: 8, threads: 1, chunk_bytes: 4194304, pieces: 0, operation: "send", accesses: 0, barrier_us: 3.125,
    verified_iterations: 1050, verified_bytes: 52436800,
    rows: [row(8, 1000, 0.002, 3.5, 4, 4.5, 5.25, 12.5, 125.5, [0.5, 1, 0, 2, 1, 0.25]),
        row(1048576, 50, 8.388608, 100, 125, 130, null, null, 250, [25, 100, 12.5, 6.25, 110, 50])],
});
const withRows = rows => Object.assign(small(), {rows});

/* --- looking at a page --- */

const count = (text, part) => text.split(part).length - 1;

function checkTags(text) {
    const open = [];
    for (const [, tag] of text.matchAll(/<([^>]*)>/g)) {
        assert.match(tag, /^\/?[a-z][a-z0-9]*( [^<]*)?\/?$/i, `no tag: <${tag}>`);
        assert.equal(count(tag, '"') % 2, 0, `quotes of <${tag}>`);
        if (tag.startsWith("/"))
            assert.equal(open.pop(), tag.slice(1), `what </${tag}> closes`);
        else if (!tag.endsWith("/"))
            open.push(tag.match(/^[a-z0-9]+/i)[0]);
    }
    assert.deepEqual(open, []);
}

/* Every value of this attribute, in the whole page. */
function checkAttribute(text, name, least, most) {
    for (const [all, value] of text.matchAll(new RegExp(` ${name}="([^"]*)"`, "g")))
        assert(value !== "" && Number(value) >= least && Number(value) <= most, `${all}: not from ${least} to ${most}`);
}

const asRun = (result, name = "one") => ({name, result});

function drawn(...results) {
    const text = draw(template, JSON.stringify(results.map(result => result.result ? result : asRun(result))));
    checkTags(text);
    assert.doesNotMatch(text, /http:|https:|src=|href=|url\(|@import|<link|<script/);
    assert.doesNotMatch(text, /\b(nan|infinity|null|undefined)\b/i);
    checkAttribute(text, "x", 0, 1000);
    checkAttribute(text, "cx", 60, 936);
    checkAttribute(text, "cy", 34, 320);
    checkAttribute(text, "y", 0, 412);
    checkAttribute(text, "width", 0, 1000);
    checkAttribute(text, "height", 0, 286);
    return text;
}

function has(text, ...parts) {
    for (const part of parts)
        assert(text.includes(part), `no '${part}' in:\n${text}`);
}

/* --- tests --- */

/* JSON has no negative numbers, none that division by zero made, and null instead. */
const extremes = [0, 1e-320, 1e-300, 1e-9, 1, 5, 1e15, 1e300, 1.79769313e308, null];

const tests = {
    test_page_names() {
        assert.deepEqual([0, 0.25, 4.02, 999.96, 2.5e6, -1, null].map(script.timeName),
            ["0 µs", "250.0 ns", "4.020 µs", "1.000 ms", "2.500 s", "–", "–"]);
        assert.deepEqual([0, 0.00204, 0.99996, 9.9996, 12.345, 999.96, 123456, 1e300, -1, NaN, Infinity].map(script.number),
            ["0", "0.0020", "1.000", "10.00", "12.35", "1000", "123456", "1.000e+300", "-", "-", "-"]);
        assert.deepEqual([0, 1, 512, 1025, 4096, 1536, 3 * 2 ** 19, 2 ** 30, 2 ** 63].map(script.sizeName),
            ["0 B", "1 B", "512 B", "1025 B", "4 KiB", "1536 B", "1536 KiB", "1 GiB", "8 EiB"]);
        assert.deepEqual([0, 1023, 1536, 1e40].map(script.amountName), ["0 B", "1023 B", "1.5 KiB", "8.67e+21 EiB"]);
        assert.deepEqual([0, 0.5, 1000, 1e6, 1e-7].map(script.short), ["0", "0.5", "1000", "1e+6", "1e-7"]);
    },
    test_linear_scale() {
        const scale = script.linear(23.6, 100, 0);
        assert.deepEqual(scale.ticks, [0, 5, 10, 15, 20, 25]);
        assert.deepEqual([0, 25, 12.5, 1e300, -5].map(scale.at), [100, 0, 50, 0, 100]);
        assert.deepEqual(script.linear(0.03, 0, 1).ticks, [0, 0.01, 0.02, 0.03]);
    },
    test_decades() {
        const scale = script.decades(7, 46000, 0, 1000);
        assert.deepEqual(scale.ticks, [10, 100, 1000, 10000]);
        /* ten times as much is always as far */
        assert.deepEqual([5, 500, 50000].map(value => scale.at(value).toFixed(2)), ["0.00", "500.00", "1000.00"]);
        assert.deepEqual(script.decades(3, 40, 0, 1000).ticks, [2, 5, 10, 20, 50]);
    },
    test_size_scale() {
        const scale = script.sizes(1, 2 ** 20, true, 0, 1050);
        assert.deepEqual([0, 1, 2, 2 ** 20].map(bytes => scale.at(bytes).toFixed(6)),
            ["0.000000", "50.000000", "100.000000", "1050.000000"]);
        assert.deepEqual(scale.ticks.slice(0, 3), [0, 1, 4]);
        for (let bytes = 1; bytes < 5000; bytes++)
            assert(scale.at(bytes) > scale.at(bytes - 1), `${bytes}`);
    },
    /* Many sizes are lines, one is bars, none is neither; the numbers are all there. */
    test_page_plots() {
        const many = drawn(small());
        assert.equal(count(many, "<svg "), 2 + 6);
        assert.equal(count(many, ' line" d=" M'), 1 + 4);
        assert.equal(count(many, "<tr><th scope"), 2);
        assert.equal(count(many, ' dot"'), 2 + 2 + 2 + 1 + 1);
        has(many, "Up to <b>8.389 GB/s</b> one way from left to right", "<title>1 MiB, 50 iterations\n8.389 GB/s, 67.11 Gbit/s</title>",
            "<title>8 B, 1000 iterations\np99.9 12.50 µs\np99 5.250 µs\nmedian 4.000 µs\nmin 3.500 µs</title>",
            "1 MiB, send: 100.0 µs, 76.9 % of the mean, 10.49 GB/s<");
        assert.equal(count(many, '<td data-name="p99" title="fewer than 100 iterations">–</td>'), 1);
        assert.equal(count(many, '<td data-name="p99.9" title="fewer than 1000 iterations">–</td>'), 1);
        const one = drawn(withRows([small().rows[1]]));
        assert.equal(count(one, "<svg "), 0);
        assert.equal(count(one, "<path "), 0);
        has(one, "<b>fewer than 1000 iterations</b>", "<b>100.0 µs, 76.9 %, 10.49 GB/s</b>");
        const none = drawn(withRows([]));
        assert.equal(count(none, "<svg "), 0);
        has(none, "Nothing was measured.");
    },
    /* Reads bring bytes to the client, and their time has no barrier in it. */
    test_page_of_reads() {
        const page = drawn({...small(), operation: "read", accesses: 3});
        has(page, "by reads one way from right to left", "The time of all accesses of an iteration",
            "<dt>Accesses at once</dt><dd>3</dd>", "<title>tcpx perf: right to left</title>");
        assert.equal(count(page, "in it. "), 0);
        has(drawn({...small(), way: "both ways", operation: "write", accesses: 1}), "by writes both ways together between left and right");
    },
    test_line_rate() {
        const result = {...small(), line_rate_gigabits_per_second: 100};
        result.rows[1].line_rate_percent = 67.108864;
        has(drawn(result), "<dt>Line rate</dt><dd>100.0 Gbit/s</dd>", "67.11 Gbit/s at 1 MiB, 67.1 % of the line rate",
            '<td data-name="% of line">67.1</td>', '<td data-name="% of line" title="not measured">–</td>');
        assert.doesNotMatch(drawn(small()), /[Ll]ine rate|% of line/);
    },
    /* What was not verified, and what was cut short, says so before any number of bytes. */
    test_warnings() {
        has(drawn({...small(), check: "none", verified_bytes: 0}), "<b>Not verified:</b>", "--check none");
        has(drawn({...small(), check: "first"}), "the first iteration of each size only");
        has(drawn({...small(), complete: false, sizes: 9, incomplete_because: "<gone>"}),
            "<b>Incomplete:</b> 2 of 9 sizes were measured: &lt;gone&gt;.");
    },
    /* Several runs: a line for each in both plots, and each rate beside that of the first. */
    test_several_runs() {
        const other = small();
        other.rows[1].gigabytes_per_second *= 2;
        other.rows.push(rowOf(4194304, 5));
        const page = drawn(asRun(small(), "before"), asRun({...other, check: "none"}, "<after>"),
            asRun({...withRows([]), complete: false}, "nothing"));
        assert.equal(count(page, "<svg "), 2);
        assert.equal(count(page, 'class="run1 line"'), 2);
        has(page, "3 runs beside each other", "&lt;after&gt;", ", NOT VERIFIED", "nothing was measured, incomplete",
            '<td data-name="of the first">200 %</td>', "<title>4 MiB\n&lt;after&gt;: 5.000 GB/s");
        drawn(asRun(withRows([]), "a"), asRun(withRows([]), "b"));
    },
    /* In a narrow window plots are narrower, and nothing lies outside. */
    test_narrow() {
        const media = {matches: true, addEventListener: () => {}};
        global.matchMedia = () => media;
        try {
            const page = drawn(small());
            checkAttribute(page, "cx", 60, 296);
            assert.equal(count(page, 'viewBox="0 0 360 346"'), 2);
        } finally {
            delete global.matchMedia;
        }
    },
    test_page_without_stages() {
        has(drawn(withRows([rowOf(8, 1), rowOf(9, 1)].map(one => ({...one, stages_us: rowOf(8, 0).stages_us})))),
            "does not say how long its stages take");
    },
    test_page_escapes() {
        const hostile = "</title><script>\"&'\x01";
        const page = drawn({...small(), client: hostile, server: hostile, path: hostile, memory: hostile, unpack: "<p>",
            version: hostile, date: hostile});
        /* the hosts in title, heading, summary and facts, the rest once each, version and date twice */
        assert.equal(count(page, "&lt;/title&gt;&lt;script&gt;&quot;&amp;&#39;?"), 2 * 4 + 2 + 2 * 2);
        has(page, "&lt;p&gt;");
    },
    /* A stage that takes a thousand times the mean is cut off, and leaves the others' bars to be seen. */
    test_long_stage() {
        const result = small();
        result.rows[0].stages_us.receive_wait = 4000;
        has(drawn(result), ">1000 %</text>", "8 B, wait for data: 4.000 ms, 88889 % of the mean<");
    },
    /* All rows are alike, or there is one, with each number that there can be. */
    test_equal_rows() {
        for (const value of extremes)
            for (const bytes of [0, 1, 4096, 18446744073709551615])
                for (const rows of [1, 8])
                    drawn(withRows(Array(rows).fill(rowOf(bytes, value))));
    },
    /* Each size that there can be, from the largest down; values from the least to the greatest. */
    test_64_rows() {
        const page = drawn(withRows([...Array(64).keys()].map(i => rowOf(i === 63 ? 0 : 2 ** (63 - i), 10 ** (-300 + 9.3 * i)))));
        assert.equal(count(page, "<tr><th scope"), 64);
        assert.equal(count(page, ' dot"'), (1 + 4) * 64);
        drawn(withRows(Array(64).fill(rowOf(4096, 5))));
    },
    /* The first size is not the best only because nothing is known of it. */
    test_best_of_known() {
        const result = small();
        result.rows[0].gigabytes_per_second = null;
        has(drawn(result), 'class="value middle">8.389 GB/s</text>', "Up to <b>8.389 GB/s</b>");
    },
    /* One value far from the others leaves each in its place. */
    test_outlier() {
        for (const value of extremes) {
            drawn(withRows([{...rowOf(0, value), median_us: 1}, small().rows[1]]));
            drawn(withRows([{...rowOf(1, 3), median_us: value}, small().rows[1]]));
        }
    },
};

Object.entries(tests).forEach(([name, run], i) => {
    try {
        run();
        console.log(`ok ${i + 1} - ${name}`);
    } catch (error) {
        console.log(`not ok ${i + 1} - ${name}\n${error.stack.replace(/^/gm, "# ")}`);
        process.exitCode = 1;
    }
});
console.log(`1..${Object.keys(tests).length}`);
