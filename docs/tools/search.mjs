// Asks the search of a built site, as its pages do, and prints the addresses found, best first, as JSON.
//
//     make docs
//     node docs/tools/search.mjs site install "my own environment"
//
// The search is a web worker of the theme. Here it runs in Node, which has neither `self` nor `postMessage`.

import fs from "node:fs";
import path from "node:path";

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => name.startsWith("search"));
const index = JSON.parse(fs.readFileSync(path.join(site, "search.json"), "utf8"));
const [BUILD, QUERY] = [0, 2]; // types of messages to the worker

let receive;
globalThis.self = globalThis;
globalThis.postMessage = (message) => receive(message);
(0, eval)(fs.readFileSync(path.join(folder, worker), "utf8"));
const ask = (type, data) =>
  new Promise((resolve) => {
    receive = resolve;
    globalThis.onmessage({ data: { type, data } });
  });

await ask(BUILD, index);
const found = {};
for (const input of queries) {
  const { data } = await ask(QUERY, { input });
  found[input] = data.items.map((item) => index.items[item.id].location);
}
console.log(JSON.stringify(found, null, 1));
