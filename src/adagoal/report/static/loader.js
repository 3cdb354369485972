"use strict";
/* Unpacks Bokeh, a third of whose size is left in the page, and runs it before the scripts of the panels. */

const $ = id => document.getElementById(id);

/* The bytes of an element that holds base64. */
const embeddedBytes = id => Uint8Array.from(atob($(id).textContent), letter => letter.charCodeAt(0));

const inflate = bytes => new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));

function runScript(text) {  // the content security policy of the page names its hash
  const script = document.createElement("script");
  script.textContent = text;
  document.body.append(script);
}

(async () => {
  runScript(await inflate(embeddedBytes("bokeh")).text());
  runScript($("panels").textContent);
  begin();
})();
