/*
 * Runs the script of a page of tcpx matrix without a browser, and looks for texts in what it draws; with a
 * name, all hosts have that one. usage: node matrix_page.js PAGE NAME REGEX...
 */
"use strict";

const fs = require("fs");
const vm = require("vm");

const [page, name, ...wanted] = process.argv.slice(2);
const html = fs.readFileSync(page, "utf8");
const json = html.match(/<script id="result" type="application\/json">\n([^]*?)<\/script>/)[1];
const script = html.match(/<script>\n([^]*?)<\/script>/)[1];
const result = JSON.parse(json);
const main = {innerHTML: ""};

if (name !== "")
    for (const rank of result.ranks)
        rank.host = name;
vm.runInNewContext(script, {
    document: {
        getElementById: () => ({textContent: JSON.stringify(result)}),
        querySelector: () => main,
    },
});
for (const regex of wanted)
    if (!new RegExp(regex).test(main.innerHTML)) {
        console.log(`no /${regex}/ in\n${main.innerHTML}`);
        process.exitCode = 1;
    }
if (main.innerHTML.includes("<img")) {
    console.log("a name became a tag");
    process.exitCode = 1;
}
if (/undefined|NaN/.test(main.innerHTML)) {
    console.log(`something is missing in\n${main.innerHTML}`);
    process.exitCode = 1;
}
