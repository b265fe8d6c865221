"use strict";
// Everything that came from a dump is put into the page as a text node. Only the drawings, which Bridle wrote and
// escaped, are set as markup.
const $ = (id) => document.getElementById(id);
const BLOCK = 256; // tokens put into the page at once, at least
const WORST = 8; // nats: at and below this the colour is full
const STEPS = 16;
const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const or = (value, shown) => (value === null || value === undefined || value === "" ? "–" : shown(value));

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return await new Response(stream).arrayBuffer();
}

const text = (buffer) => new TextDecoder().decode(buffer);
let head, shown, order = { by: "place", down: false };

// ---- the batch -------------------------------------------------------------------------------------------------

const COLUMNS = [
  ["rollout", (r) => r.known.id, (r) => (r.run ? `${r.run} / ${r.known.id}` : r.known.id)],
  ["group", (r) => r.known.group, (r) => or(r.known.group, String)],
  ["agent", (r) => r.known.harness, (r) => or(`${r.known.harness} ${r.known.harness_version}`.trim(), String)],
  ["sampled tokens", (r) => r.trained / Math.max(1, r.sampled), null],
  ["sampled", (r) => r.sampled, (r) => number(r.sampled), "n"],
  ["trained", (r) => r.trained, (r) => number(r.trained), "n"],
  ["context", (r) => r.context, (r) => number(r.context), "n"],
  ["turns", (r) => r.turns, (r) => number(r.turns), "n"],
  ["reward", (r) => r.known.reward ?? -Infinity, (r) => or(r.known.reward, (v) => number(v, 4) + (r.known.reward_valid ? "" : " (not valid)")), "n"],
  ["advantage", (r) => r.advantage ?? -Infinity, (r) => or(r.advantage, (v) => number(v, 3)), "n"],
  ["cause", (r) => r.known.cause, (r) => or(r.known.cause, String)],
];

function batch() {
  const heads = COLUMNS.map(([name, , , kind]) => {
    const button = el("button", { type: "button" }, name + (order.by === name ? (order.down ? " ↓" : " ↑") : ""));
    button.onclick = () => { order = { by: name, down: order.by === name && !order.down }; batch(); };
    return el("th", { class: kind || "", "aria-sort": order.by === name ? (order.down ? "descending" : "ascending") : "none" }, button);
  });
  $("rollouts").tHead.replaceChildren(el("tr", {}, ...heads));
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = head.rollouts.filter((r) => words.every((word) => haystack(r).includes(word)));
  const column = COLUMNS.find(([name]) => name === order.by);
  if (column) kept.sort((a, b) => compare(column[1](a), column[1](b)) * (order.down ? -1 : 1));
  $("rollouts").tBodies[0].replaceChildren(...kept.map(row));
  totals(kept);
}

const haystack = (r) => [r.known.id, r.known.task, r.known.group, r.known.harness, r.known.cause, r.known.status, r.known.grade_cause, r.run, ...Object.keys(r.untrained)].join(" ").toLowerCase();
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function row(r) {
  const cells = COLUMNS.map(([, , show, kind]) => {
    const cell = el("td", { class: kind || "" });
    if (show) { cell.textContent = show(r); cell.title = cell.textContent; return cell; }
    cell.innerHTML = `<svg width="${head.bar_width}" height="19">${r.bar}</svg>`;
    cell.title = became(r);
    return cell;
  });
  const made = el("tr", { tabindex: "0", class: shown && shown.number === r.number ? "chosen" : "" }, ...cells);
  made.onclick = () => open(r.number);
  made.onkeydown = (event) => {
    if (event.key === "Enter") open(r.number);
    const other = { ArrowDown: made.nextSibling, ArrowUp: made.previousSibling }[event.key];
    if (other) { other.focus(); event.preventDefault(); }
  };
  return made;
}

const became = (r) => [`${number(r.trained)} trained`, ...Object.entries(r.untrained).map(([why, n]) => `${number(n)} ${why}`)].join(", ");

function totals(rollouts) {
  const sum = (of) => rollouts.reduce((total, r) => total + of(r), 0);
  const rewards = rollouts.filter((r) => r.known.reward_valid).map((r) => r.known.reward);
  const untrained = {};
  for (const r of rollouts) for (const [why, n] of Object.entries(r.untrained)) untrained[why] = (untrained[why] || 0) + n;
  const graded = rewards.length ? `, mean reward ${number(rewards.reduce((a, b) => a + b, 0) / rewards.length, 3)} of ${rewards.length} graded` : "";
  $("totals").textContent = `${rollouts.length} of ${head.rollouts.length} rollouts${graded} · ${number(sum((r) => r.sampled))} sampled: ${became({ trained: sum((r) => r.trained), untrained })} · ${number(sum((r) => r.context))} context`;
}

function groups() {
  $("groups-box").hidden = !head.groups.length;
  $("groups").tHead.replaceChildren(el("tr", {}, ...["group", "run", "rollouts", "graded", "baseline (mean)", "deviation", "rewards"].map((name) => el("th", {}, name))));
  $("groups").tBodies[0].replaceChildren(...head.groups.map((g) => el("tr", {},
    ...[g.group, g.run, String(g.rollouts), String(g.rewards.length), or(g.mean, (v) => number(v, 4)), or(g.deviation, (v) => number(v, 4)), g.rewards.map((v) => number(v, 3)).join("  ")].map((value) => el("td", {}, value)))));
}

// ---- one rollout -----------------------------------------------------------------------------------------------

async function open(place) {
  const buffer = await unpack(`rollout-${place}`);
  const length = new DataView(buffer).getUint32(0, true);
  const data = JSON.parse(text(new Uint8Array(buffer, 4, length)));
  const ids = new Int32Array(buffer, 4 + length, data.ids);
  const logprobs = new Float32Array(buffer, 4 + length + 4 * data.ids, data.sampled);
  const states = new Uint8Array(buffer, 4 + length + 4 * (data.ids + data.sampled), data.sampled);
  shown = { number: place, ...data, arrays: { ids, logprobs, states }, starts: sums(data.nodes.tokens || []), draws: sums(data.turns.map((turn) => turn.sampled)), spelling: head.vocabularies[data.vocabulary] || null, turn: -1, at: -1 };
  batch();
  about(head.rollouts[place]);
  draw();
  if (data.turns.length) choose(firstOfNote(data.turns));
  else { $("detail").replaceChildren(el("p", {}, "No turn was recorded.")); $("tokens").replaceChildren(); }
}

const firstOfNote = (turns) => (turns.find((turn) => turn.marks.length) || turns[0]).seq;

function sums(values) {
  let total = 0;
  return values.map((value) => { const start = total; total += value; return start; });
}

function about(r) {
  $("name").textContent = r.run ? `${r.run} / ${r.known.id}` : r.known.id;
  const said = [`${r.known.harness} ${r.known.harness_version}`.trim(), r.known.status, r.known.cause, r.known.reward === null ? "no reward" : `reward ${number(r.known.reward, 4)}${r.known.grade_cause ? ` (${r.known.grade_cause})` : ""}`, `${number(r.sampled)} sampled: ${became(r)}`, `${r.samples} sample${r.samples === 1 ? "" : "s"}`];
  $("summary").textContent = said.filter(Boolean).join(" · ");
  $("notice").textContent = [r.notice, r.known.detail].filter(Boolean).join(" — ");
  $("notice").hidden = !$("notice").textContent;
}

function draw() {
  const axis = $("axis-time").getAttribute("aria-pressed") === "true" ? "time" : "tokens";
  $("lanes").innerHTML = shown.drawings[axis];
  for (const mark of $("lanes").querySelectorAll(".turn")) {
    const seq = Number(mark.dataset.turn);
    mark.append(titled(brief(shown.turns[seq])));
    mark.onclick = () => choose(seq);
    mark.onkeydown = (event) => {
      if (event.key === "Enter" || event.key === " ") { choose(seq); event.preventDefault(); }
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = step && $("lanes").querySelector(`[data-turn="${seq + step}"]`);
      if (next) { next.focus(); event.preventDefault(); }
    };
  }
  highlight();
}

function titled(words) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "title");
  made.textContent = words;
  return made;
}

function brief(turn) {
  const marks = turn.marks.map((name) => head.marks[name] + (name === "fork" ? ` (${turn.forks.map((echo) => echo.echo).join(", ")})` : ""));
  return [`turn ${turn.seq} · ${turn.kind} · ${turn.finish_reason}`, `${number(turn.prompt_tokens)} in the prompt, ${number(turn.sampled)} sampled: ${became(turn)}`, ...marks].join("\n");
}

function highlight() {
  for (const mark of $("lanes").querySelectorAll(".turn")) mark.classList.toggle("chosen", Number(mark.dataset.turn) === shown.turn);
}

function choose(seq) {
  shown.turn = seq;
  shown.row = rowOf(shown.turns[seq]);
  highlight();
  detail(shown.turns[seq]);
  fill(shown.turns[seq]);
}

// ---- one turn --------------------------------------------------------------------------------------------------

function detail(turn) {
  const facts = el("dl");
  const fact = (name, ...value) => facts.append(el("dt", {}, name), el("dd", {}, ...value));
  fact("id", turn.id);
  fact("kind", turn.rule ? `${turn.kind} (by ${turn.rule})` : turn.kind);
  fact("prompt", turn.new_tokens === null ? `${number(turn.prompt_tokens)} tokens` : `${number(turn.prompt_tokens)} = ${number(turn.held_tokens)} held + ${number(turn.new_tokens)} new`);
  fact("sampled", `${number(turn.sampled)}: ${became(turn)}`);
  fact("finish", turn.finish_reason + (turn.delivered ? "" : ", not delivered"));
  if (shown.timed) fact("time", `${number(turn.start, 3)} s, for ${number(turn.end - turn.start, 3)} s`);
  if (turn.behind >= 0) fact("goes on from", link(turn.behind));
  for (const echo of turn.echoes) fact("echo", echo.turn >= 0 ? link(echo.turn) : "foreign message", ` ${echo.echo}${echo.transplanted ? ", transplanted" : ""}${turn.forks.some((fork) => fork.turn === echo.turn && fork.echo === echo.echo) ? ": forks" : ""}`);
  for (const mark of turn.marks) fact("mark", el("span", { class: "alarm" }, head.marks[mark]));
  for (const note of turn.notes) fact(note.what, note.detail);
  if (turn.failed) fact("failed", turn.failed);
  if (turn.ill_formed.length) fact("ill-formed calls", turn.ill_formed.join(", "));
  const from = turn.distribution;
  if (from) fact("drawn from", `temperature ${from.temperature}, top_p ${from.top_p}, top_k ${from.top_k < 0 ? "off" : from.top_k}; logprobs ${from.logprobs}`);
  if (turn.versions.length) fact("policy version", turn.versions.map(([at, version]) => `${version} from ${at}`).join(", "));
  if (turn.thread) fact("thread", `${turn.thread.thread}${turn.thread.parent ? `, of ${turn.thread.parent}` : ""}${turn.thread.depth === null ? "" : `, depth ${turn.thread.depth}`}`);
  if (turn.samples.length) fact("in samples", turn.samples.join(", "));
  $("detail").replaceChildren(el("h2", {}, `Turn ${turn.seq}`), facts, ...said(turn), ...brought(turn));
}

function link(seq) {
  const button = el("button", { type: "button" }, `turn ${seq}`);
  button.onclick = () => choose(seq);
  return button;
}

function said(turn) {
  const parts = [];
  for (const part of turn.said || []) {
    const name = { text: "said", thinking: "thought", tool_call: "called" }[part.type];
    if (name) parts.push(el("h3", {}, name), el("pre", {}, part.type === "tool_call" ? `${part.name} ${part.arguments}${part.status && part.status !== "ok" ? `\n(${part.status})` : ""}` : part.text));
  }
  return parts;
}

function brought(turn) {
  if (!shown.spelling || turn.new_tokens === null) return [];
  const most = 600, first = turn.held_tokens, last = turn.prompt_tokens;
  const words = last - first <= most ? decoded(first, last) : `${decoded(first, first + most / 2)}\n… ${number(last - first - most)} tokens …\n${decoded(last - most / 2, last)}`;
  const jump = el("button", { type: "button" }, "show its ids");
  jump.onclick = () => go(first);
  return [el("h3", {}, `rendered new: ${number(turn.new_tokens)} tokens `, jump), el("pre", {}, words)];
}

function decoded(first, last) {
  const bytes = [];
  for (let at = first; at < Math.min(last, shown.row.length); at++) {
    const [spelling, kind] = shown.spelling[at_(at).id];
    bytes.push(...(kind === 2 ? spelling.match(/../g).map((pair) => parseInt(pair, 16)) : new TextEncoder().encode(spelling)));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

// ---- its tokens ------------------------------------------------------------------------------------------------

function rowOf(turn) {
  const path = [];
  for (let node = turn.node; node >= 0; node = shown.nodes.parent[node]) path.unshift(node);
  const lengths = path.map((node) => shown.nodes.tokens[node]);
  return { path, starts: sums(lengths), length: lengths.reduce((a, b) => a + b, 0) };
}

// The token at a position of the row: where it comes from and what became of it.
function at_(position) {
  const { path, starts } = shown.row;
  let low = 0, high = path.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= position) low = middle; else high = middle - 1;
  }
  const node = path[low], inside = position - starts[low], { nodes, arrays } = shown;
  const token = { id: arrays.ids[shown.starts[node] + inside], origin: nodes.origin[node], first: inside === 0, node, draw: null };
  if (token.origin === "sampled" && inside >= nodes.lead[node]) {
    const turn = shown.turns[nodes.turn[node]], count = inside - nodes.lead[node] + nodes.offset[node], place = shown.draws[turn.seq] + count;
    const version = turn.versions.filter(([start]) => start <= count).pop();
    token.draw = { turn, count, logprob: arrays.logprobs[place], why: arrays.states[place] ? shown.reasons[arrays.states[place] - 1] : "", version: version ? version[1] : null };
  } else if (token.origin === "sampled") token.lead = nodes.turn[node];
  return token;
}

let watcher;

// Rows of 128K tokens: a block's tokens are in the page only while it is near what is seen.
function fill(turn) {
  if (watcher) watcher.disconnect();
  const box = $("tokens"), place = Math.max(0, Math.min(turn.prompt_tokens, shown.row.length - 1));
  shown.edges = edges();
  const blocks = shown.edges.slice(0, -1).map((at, n) => el("div", { class: "block", "data-n": n }));
  box.replaceChildren(...blocks);
  $("place").max = shown.row.length - 1;
  if (!blocks.length) return;
  show(blocks[blockOf(place)]);
  for (const block of blocks) if (!block.childNodes.length) block.style.height = `${blocks[blockOf(place)].offsetHeight}px`;
  watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? show(entry.target) : hide(entry.target);
  }, { root: box, rootMargin: "1000px" });
  go(place, true);
  blocks.forEach((block) => watcher.observe(block));
}

// Where blocks begin, and the row's end: behind a line's end where one is near, so that lines are not cut.
function edges() {
  const found = [0], { length } = shown.row;
  for (let at = 0; at < length; at++) {
    const size = at - found[found.length - 1];
    if (size >= BLOCK * 3 || (size >= BLOCK && shown.spelling && endsLine(at_(at - 1).id))) found.push(at);
  }
  return length ? [...found, length] : found;
}

const endsLine = (id) => shown.spelling[id][1] === 0 && shown.spelling[id][0].endsWith("\n");

function blockOf(position) {
  let low = 0, high = shown.edges.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (shown.edges[middle] <= position) low = middle; else high = middle - 1;
  }
  return low;
}

function show(block) {
  if (block.childNodes.length) return;
  const box = $("tokens"), before = block.offsetHeight, above = block.getBoundingClientRect().bottom <= box.getBoundingClientRect().top;
  const n = Number(block.dataset.n);
  for (let at = shown.edges[n]; at < shown.edges[n + 1]; at++) block.append(...tokenAt(at));
  block.style.height = "";
  if (above) box.scrollTop += block.offsetHeight - before; // what is looked at stays where it is
}

function tokenAt(at) {
  const token = at_(at), before = at ? at_(at - 1) : null, turn = shown.turns[shown.turn], heads = [];
  if (at === turn.held_tokens && at > 0) heads.push(el("span", { class: "seg" }, `held up to here; new from here: ${number(turn.new_tokens)} tokens`));
  if (!token.draw && token.first && (!before || before.draw || token.origin !== before.origin)) heads.push(el("span", { class: "seg" }, ORIGINS[token.origin]));
  if (token.draw && !(before && before.draw && before.draw.turn === token.draw.turn)) heads.push(segment(token.draw.turn));
  return [...heads, spanOf(token, at)];
}

const ORIGINS = { prompt: "prompt", context: "an assistant message that is not a draw as it stands", transplanted: "a draw under another history: context here", sampled: "what opens a generation" };

function segment(turn) {
  const made = el("span", { class: "seg" }, el("b", {}, `turn ${turn.seq}`), ` ${turn.kind} · ${number(turn.sampled)} sampled: ${became(turn)} · ${turn.finish_reason}`);
  made.style.setProperty("--of", `var(--${turn.kind})`);
  return made;
}

function hide(block) {
  if (!block.childNodes.length) return;
  block.style.height = `${block.offsetHeight}px`;
  block.replaceChildren();
}

function spanOf(token, at) {
  const made = el("span", { class: "t", "data-at": at });
  const [spelling, kind] = shown.spelling ? shown.spelling[token.id] : [null, 0];
  if (spelling === null) made.append(`${token.id} `);
  else if (kind === 2) { made.classList.add("raw"); made.append(spelling.match(/../g).join(" ")); }
  else { if (kind === 1) made.classList.add("ctl"); visible(made, spelling); }
  if (token.draw) {
    made.classList.add("smp", ...(token.draw.why ? ["no"] : []));
    made.style.setProperty("--of", `var(--${token.draw.turn.kind})`);
    if (!Number.isNaN(token.draw.logprob)) made.classList.add(`lp${step(token.draw.logprob)}`);
  }
  if (at === shown.at) made.classList.add("on");
  return made;
}

const step = (logprob) => Math.max(0, Math.min(STEPS, Math.round((-logprob / WORST) * STEPS)));
const PICTURES = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };

// White space and control characters as signs; a line still ends where it ends.
function visible(into, spelling) {
  if (!spelling) { into.append(el("i", {}, "∅")); return; }
  for (const piece of spelling.split(/([\s\u0000-\u001f\u007f-\u00a0\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufdd0-\ufdef])/u)) {
    if (piece === "") continue;
    const code = piece.codePointAt(0);
    if (piece.length > 1 || !/[\s\u0000-\u001f\u007f-\u00a0\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufdd0-\ufdef]/u.test(piece)) into.append(piece);
    else into.append(el("i", {}, PICTURES[piece] || (code < 32 ? String.fromCodePoint(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`)), ...(piece === "\n" ? ["\n"] : []));
  }
}

function go(position, top = false) {
  if (!(position >= 0 && position < shown.row.length)) return;
  const box = $("tokens"), block = box.children[blockOf(position)];
  show(block);
  shown.at = position;
  for (const old of box.querySelectorAll(".on")) old.classList.remove("on");
  const mark = block.querySelector(`.t[data-at="${position}"]`);
  mark.classList.add("on");
  const near = mark.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (top || near.top < frame.top + 20 || near.bottom > frame.bottom - 20) box.scrollTop += near.top - frame.top - 120;
  tell(position);
}

function tell(position) {
  const token = at_(position), draw = token.draw;
  const [spelling, kind] = shown.spelling ? shown.spelling[token.id] : [null, 0];
  const bytes = spelling === null ? null : kind === 2 ? spelling : [...new TextEncoder().encode(spelling)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const words = [`position ${number(position)}`, `id ${token.id}`];
  if (spelling !== null) words.push(kind === 2 ? "bytes that alone are no text" : `${kind ? "control token " : ""}${JSON.stringify(spelling)}`, `bytes ${bytes || "none"}`);
  if (!draw) words.push(`context: ${token.lead !== undefined ? `opens turn ${token.lead}` : ORIGINS[token.origin]}`);
  else {
    words.push(`turn ${draw.turn.seq}, sampled number ${draw.count}`, draw.why ? `does not train: ${draw.why}` : "trains");
    words.push(Number.isNaN(draw.logprob) ? "no logprob" : `logprob ${draw.logprob.toFixed(4)} (p ${Math.exp(draw.logprob).toPrecision(3)})`);
    words.push(draw.version === null ? "no version given" : `policy version ${draw.version}`);
  }
  $("token").textContent = words.join(" · ");
  $("place").value = position;
}

function scale() {
  const heat = Array.from({ length: STEPS + 1 }, (_, n) => `#tokens .lp${n},.lp${n}{background-color:color-mix(in srgb,var(--alarm) ${Math.round((n / STEPS) * 72)}%,transparent)}`);
  document.head.append(el("style", {}, heat.join("")));
  const boxes = Array.from({ length: STEPS / 2 + 1 }, (_, n) => el("span", { class: `lp${n * 2}` }));
  $("scale").replaceChildren("logprob 0", el("b", { style: "display:flex;border:1px solid var(--line)" }, ...boxes), `≤ −${WORST} nats · underlined: sampled · hatched: does not train`);
}

function keys() {
  const turn = (by) => { if (shown && shown.turns[shown.turn + by]) choose(shown.turn + by); };
  $("earlier").onclick = () => turn(-1);
  $("later").onclick = () => turn(1);
  $("place").onchange = (event) => go(Number(event.target.value));
  $("filter").oninput = batch;
  $("tokens").onclick = (event) => { const token = event.target.closest(".t"); if (token) go(Number(token.dataset.at)); };
  $("tokens").onkeydown = (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, PageDown: BLOCK, PageUp: -BLOCK }[event.key];
    if (move) { go(Math.max(0, Math.min(shown.row.length - 1, shown.at + move))); event.preventDefault(); }
    if (event.key === "Home") go(0);
    if (event.key === "End") go(shown.row.length - 1);
  };
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "[") turn(-1);
    if (event.key === "]") turn(1);
  });
  for (const [one, other] of [["axis-tokens", "axis-time"], ["axis-time", "axis-tokens"]]) $(one).onclick = () => { $(one).setAttribute("aria-pressed", "true"); $(other).setAttribute("aria-pressed", "false"); draw(); };
  $("theme").onclick = () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  };
}

async function start() {
  head = JSON.parse(text(await unpack("head")));
  head.rollouts.forEach((r, place) => { r.number = place; });
  $("legend").innerHTML = head.legend;
  $("reasons").innerHTML = head.reasons;
  scale();
  keys();
  groups();
  batch();
  if (head.rollouts.length) await open(0);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => { $("trouble").hidden = false; $("trouble").textContent = `This page could not be shown: ${error}. It needs a browser of 2023 or later.`; });
