/*
 * Runs the script of a page of `tcpx perf --html` without a browser, for node. A line of input is a
 * request: "draw PATH", answered with the title and what the script puts into the page, or "value
 * EXPRESSION", of the script of the page that was drawn last. Behind each answer is a line "\x04".
 * With arguments they are pages to draw.
 */
"use strict";
const fs = require("fs");

let script = "";

function draw(path) {
    const text = fs.readFileSync(path, "utf8");
    const json = text.match(/<script id="result" type="application\/json">([^<]*)<\/script>/)[1];
    const main = {innerHTML: ""};
    const shown = {title: "", getElementById: () => ({textContent: json}), querySelector: () => main};

    script = text.match(/<script>([^]*)<\/script>/)[1];
    Function("document", script)(shown);
    return `<title>${value(`escaped(${JSON.stringify(shown.title)})`)}</title>\n<main>\n${main.innerHTML}</main>`;
}

function value(expression) {
    return Function(`${script}\nreturn ${expression};`)();
}

if (process.argv.length > 2)
    process.argv.slice(2).forEach(path => console.log(draw(path)));
else
    require("readline").createInterface({input: process.stdin}).on("line", line => {
        const [, request, rest] = line.match(/^(\w+) (.*)$/);
        let answer;

        try {
            answer = request === "draw" ? draw(rest) : value(rest);
        } catch (error) {
            answer = `exception ${error.stack}`;
        }
        process.stdout.write(`${answer}\n\x04\n`);
    });
