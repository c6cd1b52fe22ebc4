// The page of `voile dashboard`. It asks for data.json, draws the workloads and their calls, and shows what is chosen. All text comes
// into the document as text, never as markup.
"use strict";

const EVERY_MS = 2000; // Between two questions.
const KEPT_MS = 15 * 60 * 1000; // Of figures for the small plots, since the page was opened.
const MOST_NODES = 200; // More are folded by namespace.
const NODE = { width: 168, height: 44, across: 260, down: 62, free: 22, margin: 14 };

const MOST_RECORDS = 200; // Of requests that are shown.

const VIEWS = ["graph", "calls", "requests", "proxies", "records"];
// Of the chosen workload, asked for when they are opened.
const PARTS = [["callers", "Who can call this"], ["configuration", "Configuration"], ["logs", "Logs"]];

const element = (id) => document.getElementById(id);
const state = { data: null, view: "graph", chosen: null, shown: null, open: new Set(), sort: "requests", history: new Map(), unfolded: new Set(),
  requests: { show: "all", paused: false, after: 0, records: [], missed: 0, problem: null }, records: make("p", { class: "empty" }, "reading the records …") };

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "path", "text", "title", "defs", "marker"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Figures for people.
const rate = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));
const share = (value) => (value === null || value === undefined ? "–" : `${(Math.floor(value * 1000) / 10).toFixed(1)} %`);
const milliseconds = (value) => (value === null || value === undefined ? "–" : value < 10 ? value.toFixed(2) : value.toFixed(0));
function bytes(value) {
  const units = ["B", "KB", "MB", "GB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value < 10 && at > 0 ? value.toFixed(1) : value.toFixed(0)} ${units[at]}`;
}
// A name that may be broken after its namespace.
function breakable(name) {
  const parts = document.createDocumentFragment();
  parts.append(...name.split(/(?<=\/)/).flatMap((part, at) => (at ? [make("wbr"), part] : [part])));
  return parts;
}
const refused = (edge) => edge.denied + edge.limited;
const level = (edge) => (edge.errors > 0 ? "bad" : refused(edge) > 0 ? "warn" : "");

// The namespace of a workload; hosts and unknown callers have none.
const namespaceOf = (name) => (name.includes("/") ? name.split("/")[0] : "");

// Workloads and calls as they are drawn: one node for each workload, or one for each namespace that is folded.
function folded(data) {
  const names = new Set();
  // A host that no workload answers for has its place only while it is called.
  const calls = data.edges.filter((edge) => edge.requests > 0 || namespaceOf(edge.destination));
  for (const edge of calls) names.add(edge.source).add(edge.destination);
  for (const workload of data.workloads) names.add(workload.name);
  const fold = names.size > MOST_NODES;
  const drawn = (name) => {
    const namespace = namespaceOf(name);
    return fold && namespace && !state.unfolded.has(namespace) ? namespace : name;
  };
  const nodes = new Set([...names].map(drawn));
  const edges = new Map();
  for (const edge of calls) {
    const [source, destination] = [drawn(edge.source), drawn(edge.destination)];
    if (source === destination && edge.source !== edge.destination) continue;
    const key = `${source} ${destination}`;
    const sum = edges.get(key) || { source, destination, requests: 0, errors: 0, denied: 0, limited: 0, secure: 0, p99_ms: null };
    for (const figure of ["requests", "errors", "denied", "limited"]) sum[figure] += edge[figure];
    sum.secure += (edge.mutual_tls || 0) * edge.requests;
    if (edge.p99_ms !== null && (sum.p99_ms === null || edge.p99_ms > sum.p99_ms)) sum.p99_ms = edge.p99_ms;
    edges.set(key, sum);
  }
  return { nodes: [...nodes].sort(), edges: [...edges.values()], fold };
}

// Places for nodes and calls. Callers are left of those that they call, without the calls that lead back; a call that passes columns
// has a free place in each, so that no line crosses a node.
function layout(nodes, edges) {
  const column = columnsOf(nodes, edges);
  const layers = [];
  const put = (at, item) => (layers[at] ||= []).push(item);
  const items = new Map(nodes.map((name) => [name, { name, near: [[], []], y: 0 }]));
  for (const name of nodes) put(column.get(name), items.get(name));
  const calls = [];
  for (const edge of edges.filter((edge) => edge.source !== edge.destination)) {
    const back = column.get(edge.source) >= column.get(edge.destination);
    const [left, right] = back ? [edge.destination, edge.source] : [edge.source, edge.destination];
    const chain = [items.get(left)];
    for (let at = column.get(left) + 1; at < column.get(right); at += 1) {
      const free = { name: null, near: [[], []], y: 0 };
      put(at, free);
      chain.push(free);
    }
    chain.push(items.get(right));
    for (let at = 1; at < chain.length; at += 1) {
      chain[at - 1].near[1].push(chain[at]);
      chain[at].near[0].push(chain[at - 1]);
    }
    calls.push({ edge, back, chain });
  }
  const filled = layers.filter(Boolean);
  filled.forEach((layer, x) => layer.forEach((item, at) => Object.assign(item, { x, at: at - layer.length / 2 })));
  // Neighbours near each other: from left to right and back, by the mean place of the neighbours on the other side.
  for (let turn = 0; turn < 8; turn += 1) {
    const side = turn % 2;
    for (const layer of side ? [...filled].reverse() : filled) {
      for (const item of layer) {
        const near = item.near[side];
        item.mean = near.length ? near.reduce((sum, other) => sum + other.at, 0) / near.length : item.at;
      }
      layer.sort((one, other) => one.mean - other.mean);
      layer.forEach((item, at) => { item.at = at - layer.length / 2; });
    }
  }
  // Many passing lines stand closer together.
  const passing = Math.max(...filled.map((layer) => layer.filter((item) => !item.name).length));
  const free = Math.max(3, Math.min(NODE.free, 900 / Math.max(1, passing)));
  const tall = (item) => (item.name ? NODE.down : free);
  const heights = filled.map((layer) => layer.reduce((sum, item) => sum + tall(item), 0));
  const height = Math.max(...heights);
  filled.forEach((layer, x) => {
    let y = height > 900 ? 0 : (height - heights[x]) / 2; // A high picture begins at its top.
    for (const item of layer) {
      item.x = NODE.margin + x * NODE.across;
      item.y = NODE.margin + y + tall(item) / 2;
      y += tall(item);
    }
  });
  return { items, calls, width: NODE.margin * 2 + (filled.length - 1) * NODE.across + NODE.width, height: height + NODE.margin * 2 };
}

// The column of each node: right of all that call it.
function columnsOf(nodes, edges) {
  const calls = new Map(nodes.map((name) => [name, []]));
  const called = new Set();
  for (const { source, destination } of edges) {
    if (source === destination) continue;
    calls.get(source).push(destination);
    called.add(destination);
  }
  const column = new Map();
  const open = new Set();
  const order = [];
  // Without recursion: a chain may be long.
  const visit = (start) => {
    const stack = [[start, 0]];
    open.add(start);
    while (stack.length) {
      const top = stack[stack.length - 1];
      const next = calls.get(top[0])[top[1]];
      if (next === undefined) {
        open.delete(top[0]);
        column.set(top[0], 0);
        order.push(top[0]);
        stack.pop();
      } else if (open.has(next)) {
        calls.get(top[0]).splice(top[1], 1); // It leads back.
      } else {
        top[1] += 1;
        if (!column.has(next)) {
          open.add(next);
          stack.push([next, 0]);
        }
      }
    }
  };
  for (const name of nodes) if (!called.has(name)) visit(name);
  for (const name of nodes) if (!column.has(name)) visit(name);
  for (const name of order.reverse()) {
    for (const next of calls.get(name)) column.set(next, Math.max(column.get(next), column.get(name) + 1));
  }
  return column;
}

// A line through points, level at each.
function curve(points) {
  let path = `M${points[0][0]} ${points[0][1]}`;
  for (let at = 1; at < points.length; at += 1) {
    const [[x1, y1], [x2, y2]] = [points[at - 1], points[at]];
    const middle = (x1 + x2) / 2;
    path += ` C${middle} ${y1}, ${middle} ${y2}, ${x2} ${y2}`;
  }
  return path;
}

function drawGraph(data) {
  const { nodes, edges, fold } = folded(data);
  if (!nodes.length) return make("p", { class: "empty" }, "No workload is known yet. Rows appear when proxies have seen traffic.");
  const { items, calls, width, height } = layout(nodes, edges);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Who calls whom" });
  const arrow = (id, colour) => make("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
    make("path", { d: "M0 0 L8 4 L0 8 z", style: `fill: var(--${colour}); stroke: none` }));
  svg.append(make("defs", {}, arrow("arrow", "edge"), arrow("arrow-bad", "bad"), arrow("arrow-warn", "warn")));
  const most = Math.max(1, ...edges.map((edge) => edge.requests));
  const chosen = nodes.includes(state.chosen) ? state.chosen : null;
  // Lines reach a node's side one below the other, in the order of where they come from.
  const ends = new Map();
  for (const call of calls) {
    for (const [item, side, next] of [[call.chain[0], 1, call.chain[1]], [call.chain.at(-1), 0, call.chain.at(-2)]]) {
      const key = `${side} ${item.name}`;
      ends.set(key, [...(ends.get(key) || []), { call, y: next.y }]);
    }
  }
  for (const list of ends.values()) list.sort((one, other) => one.y - other.y);
  const end = (item, side, call) => {
    const list = ends.get(`${side} ${item.name}`);
    const at = list.findIndex((one) => one.call === call);
    return { x: item.x + side * NODE.width, y: item.y - NODE.height / 2 + (NODE.height * (at + 1)) / (list.length + 1), crowded: list.length > 3 };
  };
  for (const call of calls) {
    const { edge, back, chain } = call;
    const [left, right] = [end(chain[0], 1, call), end(chain.at(-1), 0, call)];
    const points = [[left.x, left.y], ...chain.slice(1, -1).flatMap((free) => [[free.x, free.y], [free.x + NODE.width, free.y]]), [right.x, right.y]];
    if (back) points.reverse();
    const kind = level(edge);
    const perSecond = rate(edge.requests / data.seconds);
    const secure = edge.requests > 0 && edge.secure >= edge.requests * 0.9999;
    const about = `${edge.source} → ${edge.destination}: ${perSecond}/s, p99 ${milliseconds(edge.p99_ms)} ms, mutual TLS ${share(edge.requests > 0 ? edge.secure / edge.requests : null)}`;
    const mine = edge.source === chosen || edge.destination === chosen;
    const group = make("g", { class: chosen && !mine ? "faded" : null });
    group.append(make("path", { d: curve(points), class: edge.requests > 0 || kind ? kind : "idle", "stroke-width": 1 + 4 * Math.sqrt(edge.requests / most), "marker-end": `url(#arrow${kind ? `-${kind}` : ""})` }, make("title", {}, about)));
    // The figure stands before the arrow.
    const [tip, towards] = back ? [left, 1] : [right, -1];
    if (!tip.crowded || mine) {
      const x = tip.x + towards * 12 + (secure && back ? 10 : 0);
      group.append(make("text", { class: "rate", x, y: tip.y - 3, "text-anchor": back ? "start" : "end" }, `${perSecond}/s`));
      if (secure) group.append(lock(back ? tip.x + 11 : x - 10 - 5.8 * (perSecond.length + 2), tip.y - 12));
    }
    svg.append(group);
  }
  const known = new Map(data.workloads.map((workload) => [workload.name, workload]));
  for (const name of nodes) svg.append(drawNode(items.get(name), edges, known.get(name), fold, chosen));
  return svg;
}

// A closed lock: every request by mutual TLS.
const lock = (x, y) => make("g", { transform: `translate(${x} ${y})`, class: "lock" }, make("title", {}, "mutual TLS"),
  make("rect", { x: 0, y: 4, width: 8, height: 6, rx: 1 }), make("path", { d: "M1.8 4 V2.8 a2.2 2.2 0 0 1 4.4 0 V4" }));

function drawNode({ name, x, y }, edges, workload, fold, chosen) {
  const into = edges.filter((edge) => edge.destination === name);
  const worst = into.some((edge) => edge.errors > 0) ? "bad" : into.some((edge) => refused(edge) > 0) ? "warn" : "";
  const late = workload && workload.ready < workload.wanted;
  const isFolded = fold && !name.includes("/") && !name.includes(".") && name !== "unknown";
  const [namespace, own] = name.includes("/") ? name.split("/") : ["", name];
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const below = isFolded ? "namespace: open it" : late ? `${namespace} · ${workload.ready} of ${workload.wanted} ready` : namespace || (name.includes(".svc.") ? "no pod answered" : "outside the mesh");
  const choose = () => {
    if (isFolded) state.unfolded.add(name);
    else state.chosen = state.chosen === name ? null : name;
    draw();
  };
  const onkeydown = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } };
  const kind = ["node", late ? "bad" : worst, chosen === name ? "chosen" : ""].filter(Boolean).join(" ");
  return make("g", { class: kind, transform: `translate(${x} ${y - NODE.height / 2})`, tabindex: 0, role: "button", "aria-label": name, "data-name": name, onclick: choose, onkeydown },
    make("rect", { width: NODE.width, height: NODE.height, rx: 8 }), make("text", { x: 10, y: 19 }, cut(own, 22)),
    make("text", { class: "dim", x: 10, y: 35 }, cut(below, 27)), make("title", {}, name));
}

// A table whose heads sort it. Columns: [head, key of the row, text, class, mark of a row]. A narrow screen leaves out those of class "wide".
function table(rows, heads) {
  const [, key] = heads.find(([, key]) => key === state.sort) || heads[0];
  const value = (row) => row[key] ?? -1;
  const sorted = [...rows].sort((one, other) => (typeof value(one) === "string" ? value(one).localeCompare(value(other)) : value(other) - value(one)));
  const head = (title, key, kind) => make("th", { class: kind || null, scope: "col" },
    make("button", { "data-sorted": key === state.sort ? "" : null, onclick: () => { state.sort = key; draw(); } }, title));
  const cell = (row, [, key, text, kind, mark]) => make("td", { class: [kind, mark && mark(row)].filter(Boolean).join(" ") || null }, text ? text(row[key], row) : String(row[key] ?? "–"));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map(([title, key, , kind]) => head(title, key, kind)))),
    make("tbody", {}, ...sorted.map((row) => make("tr", {}, ...heads.map((column) => cell(row, column))))));
}

const marked = (key, kind) => (row) => (row[key] > 0 ? kind : "");

function drawCalls(data, edges = data.edges) {
  const perSecond = (value) => rate(value / data.seconds);
  if (!edges.length) return make("p", { class: "empty" }, "No calls.");
  return table(edges, [
    ["From", "source", breakable, "word"], ["To", "destination", breakable, "word"], ["Protocol", "protocols", (all) => all.join(", "), "word wide"],
    ["Req/s", "requests", perSecond], ["Success", "success", share, "wide"], ["Err/s", "errors", perSecond, null, marked("errors", "bad")],
    ["Denied/s", "denied", perSecond, null, marked("denied", "warn")], ["Limited/s", "limited", perSecond, "wide", marked("limited", "warn")],
    ["p50 ms", "p50_ms", milliseconds, "wide"], ["p99 ms", "p99_ms", milliseconds], ["mTLS", "mutual_tls", share, "wide"],
    ["To server", "bytes_to_server", (value) => `${bytes(value / data.seconds)}/s`, "wide"], ["To client", "bytes_to_client", (value) => `${bytes(value / data.seconds)}/s`, "wide"],
  ]);
}

function lasting(seconds) {
  if (seconds === null) return "–";
  if (seconds <= 0) return "expired";
  return seconds >= 172800 ? `${Math.floor(seconds / 86400)} d` : seconds >= 3600 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 60)} min`;
}

function drawProxies(data) {
  if (!data.proxies.length) return make("p", { class: "empty" }, "No proxy is connected.");
  return table(data.proxies, [
    ["Proxy", "name", breakable, "word"], ["Identity", "identity", null, "word wide"],
    ["In sync", "synced", (synced) => (synced ? "yes" : "no"), null, (row) => (row.synced ? "good" : "bad")],
    ["Refuses", "refuses", (refuses) => refuses || "–", "word", (row) => (row.refuses ? "bad" : "")],
    ["Certificate", "certificate_seconds", lasting, null, (row) => (row.certificate_seconds !== null && row.certificate_seconds <= 0 ? "bad" : "")],
  ]);
}

// Requests as they end, the newest first.
function drawRequests() {
  const requests = state.requests;
  const choose = (show, title) => make("button", { "aria-pressed": String(requests.show === show), onclick: () => {
    Object.assign(requests, { show, after: 0, records: [], missed: 0, problem: null });
    draw();
  } }, title);
  const pause = make("button", { "aria-pressed": String(requests.paused), onclick: () => { requests.paused = !requests.paused; draw(); } }, "Pause");
  const left = requests.missed ? make("span", {}, `${requests.missed} left out: too many`) : null;
  const bar = make("div", { class: "choice" }, choose("all", "All"), choose("errors", "Errors"), choose("denied", "Denied"), pause, left);
  const problem = requests.problem ? make("p", { class: "empty" }, requests.problem) : null;
  if (!requests.records.length) return make("div", {}, bar, problem || make("p", { class: "empty" }, "No request yet. Requests appear when they end."));
  const account = (id) => (id ? (id.split("/ns/")[1] || id).replace("/sa/", "/") : null);
  const service = (cluster) => { const parts = (cluster || "").split("|"); return parts.length === 4 ? `${parts[3].split(".svc.")[0]}:${parts[1]}` : null; };
  const why = (record) => ["flags", "details", "termination", "upstream_failure", "downstream_failure", "policy_document"]
    .map((field) => record[field]).filter((text) => text && text !== "via_upstream").join(" · ");
  const attempts = (record) => (record.attempts > 1 ? `${record.attempts} attempts` : "");
  const spent = (record) => ["proxy", "queue", "upstream"].filter((part) => record[`${part}_ms`] !== undefined)
    .map((part) => `${part} ${milliseconds(record[`${part}_ms`])} ms`).join(", ");
  // A narrow screen has the cells of a request below each other, where their second class places them.
  const row = (record) => {
    const out = record.side === "outbound";
    const kind = record.status >= 500 || record.status === 0 || record.upstream_failure ? "bad" : /denied|rate_limited/.test(why(record)) ? "warn" : "";
    const cells = [[record.time.slice(11, 23), "word time"], [record.proxy, "word proxy"], [out ? "out" : "in", `word side ${out ? "out" : "in"}`],
      [record.method ? `${record.method} ${record.authority || ""}${record.path || ""}` : `TCP ${record.server_name || record.destination}`, "word what"],
      [record.status === undefined ? "–" : record.status === 0 ? "none" : `${record.status}${record.grpc_status ? ` / ${record.grpc_status}` : ""}`, `status ${kind}`],
      [milliseconds(record.duration_ms), "took"], [(out ? service(record.cluster) : account(record.from)) || record.client, "word other"], [record.endpoint || "–", "word endpoint"],
      [[attempts(record), why(record), spent(record)].filter((text) => text).join(" · "), "word why"]];
    return make("tr", {}, ...cells.map(([text, of]) => make("td", { class: of.trim() }, String(text))));
  };
  const heads = [["Time (UTC)", "word"], ["Proxy", "word"], ["", "word"], ["Request", "word"], ["Status"], ["ms"], ["To / from", "word"], ["Endpoint", "word endpoint"], ["Details", "word"]];
  return make("div", {}, bar, problem, make("table", { id: "recorded" },
    make("thead", {}, make("tr", {}, ...heads.map(([text, of]) => make("th", { class: of || null }, text)))),
    make("tbody", {}, ...requests.records.map(row))));
}

// The records of the laboratory are read when their view is chosen.
async function askRecords() {
  try {
    const answer = await fetch("records.json");
    if (!answer.ok) throw new Error(await answer.text());
    state.records = drawRecords(await answer.json());
  } catch (error) {
    state.records = make("p", { class: "empty" }, error.message);
  }
  if (state.view === "records") draw();
}

function drawRecords({ folders, records }) {
  if (!records.length) return make("p", { class: "empty" }, `No record in ${folders.join(", ")}. voile bench quick makes one; --records names other folders.`);
  const link = (path, text) => make("a", { href: path, target: "_blank" }, text);
  const chosen = {};
  const compare = make("span", {}, "Choose two records to compare them.");
  const choice = (which, { name }) => make("input", { type: "radio", name: which, "aria-label": `${which}: ${name}`, onchange: () => {
    chosen[which] = name;
    const { first, second } = chosen;
    if (first && second) compare.replaceChildren(link(`comparison.html?first=${encodeURIComponent(first)}&second=${encodeURIComponent(second)}`, `Compare ${first} with ${second}`));
  } });
  const row = (record) => make("tr", {}, make("td", { class: "word" }, record.name),
    make("td", {}, record.report ? link(`report.html?of=${encodeURIComponent(record.name)}`, "report") : "–"),
    make("td", {}, choice("first", record)), make("td", {}, choice("second", record)));
  const heads = ["Record", "", "First", "Second"].map((head, at) => make("th", { class: at ? null : "word" }, head));
  return make("div", {}, make("p", {}, compare), make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...records.map(row))));
}

// What is known of the chosen workload.
function drawPanel(data) {
  const panel = element("panel");
  const name = state.chosen;
  panel.hidden = !name;
  if (panel.dataset.of !== (name || "")) {
    panel.dataset.of = name || "";
    element("parts").replaceChildren(...(name ? PARTS.map((part) => makePart(part, name)) : []));
  }
  if (!name) return;
  const into = data.edges.filter((edge) => edge.destination === name);
  const out = data.edges.filter((edge) => edge.source === name);
  const sum = (edges, key) => edges.reduce((all, edge) => all + edge[key], 0);
  const requests = sum(into, "requests");
  const secured = (edges) => {
    const known = edges.filter((edge) => edge.mutual_tls !== null && edge.requests > 0);
    return known.length ? known.reduce((all, edge) => all + edge.mutual_tls * edge.requests, 0) / sum(known, "requests") : null;
  };
  const workload = data.workloads.find((one) => one.name === name);
  const identities = new Set([...into.flatMap((edge) => edge.destination_identities), ...out.flatMap((edge) => edge.source_identities)]);
  const facts = [
    ["Requests", `${rate(requests / data.seconds)}/s`],
    ["Errors", `${rate(sum(into, "errors") / data.seconds)}/s`],
    ["Denied", `${rate(sum(into, "denied") / data.seconds)}/s`],
    ["p99", `${milliseconds(into.reduce((most, edge) => (edge.p99_ms > most ? edge.p99_ms : most), null))} ms`],
    ["Mutual TLS", share(secured(into))],
    ["Calls out", `${rate(sum(out, "requests") / data.seconds)}/s`],
    ["Identity", [...identities].join(", ") || (workload && workload.identity) || "none"],
  ];
  if (workload) facts.push(["Pods", `${workload.ready} of ${workload.wanted} ready`], ["Restarts", String(workload.restarts)]);
  const calls = (edges, end) => edges.length
    ? make("ul", {}, ...edges.map((edge) => make("li", {}, `${edge[end]}: ${rate(edge.requests / data.seconds)}/s${edge.errors > 0 ? `, ${rate(edge.errors / data.seconds)} errors/s` : ""}${edge.denied > 0 ? `, ${rate(edge.denied / data.seconds)} denied/s` : ""}`)))
    : make("p", {}, "nobody in this time");
  const samples = state.history.get(name) || [];
  const plot = (title, key) => {
    const values = samples.map((sample) => sample[key] || 0);
    const top = Math.max(...values, 0.001);
    const step = 300 / Math.max(1, values.length - 1);
    const path = values.map((value, at) => `${at ? "L" : "M"}${(at * step).toFixed(1)} ${(40 - (value / top) * 36).toFixed(1)}`).join(" ");
    return make("div", {}, make("span", {}, `${title}, at most ${key === "p99_ms" ? `${milliseconds(top)} ms` : `${rate(top)}/s`}`),
      make("svg", { viewBox: "0 0 300 42", preserveAspectRatio: "none", role: "img", "aria-label": title }, make("path", { d: path || "M0 40", "vector-effect": "non-scaling-stroke" })));
  };
  const proxies = data.proxies.filter((proxy) => workload && workload.pods.includes(proxy.name));
  element("facts").replaceChildren(
    make("h2", {}, name), make("button", { onclick: () => { state.chosen = null; draw(); } }, "Close"),
    make("dl", {}, ...facts.flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)])),
    make("div", { class: "sparks" }, plot("Requests", "requests"), plot("Errors and refusals", "failures"), plot("p99", "p99_ms")),
    make("h2", {}, "Called by"), calls(into, "source"), make("h2", {}, "Calls"), calls(out, "destination"),
    ...(proxies.length ? [make("h2", {}, "Proxies"), make("ul", {}, ...proxies.map((proxy) => make("li", {}, `${proxy.name}: ${proxy.synced ? "in sync" : "not in sync"}, certificate ${lasting(proxy.certificate_seconds)}`)))] : []));
}

// A part of the panel that is asked for only while it is open.
function makePart([part, title], name) {
  const answer = make("div");
  const details = make("details", { "data-part": part }, make("summary", {}, title), answer);
  details.open = state.open.has(part);
  details.addEventListener("toggle", () => {
    state.open[details.open ? "add" : "delete"](part);
    address();
    askPart(details, part, name, answer);
  });
  return details;
}

async function askPart(details, part, name, answer) {
  clearTimeout(details.again);
  if (!details.open || !details.isConnected) return;
  if (!document.hidden) {
    try {
      const page = await fetch(`workload.json?part=${part}&name=${encodeURIComponent(name)}`);
      const text = await page.text();
      if (!page.ok) throw new Error(text);
      const drawn = { callers: drawCallers, configuration: drawConfiguration, logs: drawLogs }[part](JSON.parse(text));
      // Who reads further up stays there.
      const seen = new Map([...answer.querySelectorAll("pre")].map((pre) => [pre.id, pre.scrollTop + pre.clientHeight < pre.scrollHeight - 4 ? pre.scrollTop : null]));
      answer.replaceChildren(...drawn);
      for (const pre of answer.querySelectorAll("pre")) pre.scrollTop = seen.get(pre.id) ?? pre.scrollHeight;
    } catch (error) {
      answer.replaceChildren(make("p", { class: "dim" }, error.message));
    }
  }
  if (part === "logs") details.again = setTimeout(() => askPart(details, part, name, answer), EVERY_MS);
}

const list = (lines) => make("ul", {}, ...lines.map((line) => make("li", {}, line)));

function drawCallers(services) {
  const access = ({ places, answers }) => [...places.map((place) => make("p", { class: "dim" }, place)),
    ...answers.flatMap(({ access, callers }) => [make("h4", {}, access), list(callers)])];
  return services.flatMap(({ service, access: all, entrances }) => [make("h3", {}, service), ...all.flatMap(access),
    ...(entrances.length ? [make("h4", {}, "from outside of the mesh"), list(entrances)] : [])]);
}

function drawConfiguration({ receiving, to_it, calling }) {
  const documents = (title, all) => (all.length ? [make("h3", {}, title), make("ul", {}, ...all.map(({ kind, name, place }) => make("li", {}, `${kind} ${name}`, make("br"), make("span", { class: "dim" }, place))))] : []);
  const all = [...documents("For what it receives", receiving), ...documents("For what is sent to it", to_it), ...documents("For what it calls", calling)];
  return all.length ? all : [make("p", { class: "dim" }, "No document holds for it.")];
}

function drawLogs(logs) {
  if (!logs.length) return [make("p", { class: "dim" }, "It has written nothing.")];
  return logs.flatMap(({ process, text }) => [make("h3", {}, process), make("pre", { id: `log-${process}`, tabindex: 0 }, text || "nothing yet")]);
}

// Keeps the figures of every workload for the small plots.
function remember(data) {
  const now = Date.now();
  const sums = new Map();
  for (const edge of data.edges) {
    const sum = sums.get(edge.destination) || { at: now, requests: 0, failures: 0, p99_ms: 0 };
    sum.requests += edge.requests / data.seconds;
    sum.failures += (edge.errors + refused(edge)) / data.seconds;
    sum.p99_ms = Math.max(sum.p99_ms, edge.p99_ms || 0);
    sums.set(edge.destination, sum);
  }
  for (const name of new Set([...sums.keys(), ...state.history.keys()])) {
    const samples = (state.history.get(name) || []).filter((sample) => sample.at > now - KEPT_MS);
    samples.push(sums.get(name) || { at: now, requests: 0, failures: 0, p99_ms: 0 });
    state.history.set(name, samples);
  }
}

function draw() {
  const data = state.data;
  if (!data) return;
  for (const view of VIEWS) element(view).setAttribute("aria-pressed", String(state.view === view));
  address();
  document.title = element("title").textContent = data.title;
  const total = data.edges.reduce((all, edge) => all + edge.requests, 0) / data.seconds;
  const behind = data.proxies.filter((proxy) => !proxy.synced).length;
  element("summary").textContent = `${data.workloads.length || new Set(data.edges.flatMap((edge) => [edge.source, edge.destination])).size} workloads · ${rate(total)} requests/s · ${data.proxies.length} proxies, ${behind ? `${behind} not in sync` : "all in sync"}`;
  element("problems").replaceChildren(...data.problems.map((problem) => make("li", {}, problem)));
  // The focus stays on its workload while the graph is drawn anew.
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.name : undefined;
  const drawn = { graph: drawGraph, calls: drawCalls, requests: drawRequests, proxies: drawProxies, records: () => state.records }[state.view](data);
  if (element("stage").firstChild !== drawn) element("stage").replaceChildren(drawn);
  if (state.chosen !== state.shown) {
    state.shown = state.chosen;
    element("panel").hidden = !state.chosen; // The stage has its width before it scrolls.
    if (state.chosen) element("stage").querySelector(`[data-name="${CSS.escape(state.chosen)}"]`)?.scrollIntoView({ block: "nearest", inline: "center" });
  }
  if (focused) element("stage").querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  drawPanel(data);
}

// The address names view, workload and open parts, such as #graph:shop/web:logs, so that it can be passed on.
function address() {
  const open = state.open.size ? `:${[...state.open].join(",")}` : "";
  history.replaceState(null, "", `#${state.view}${state.chosen ? `:${state.chosen}${open}` : ""}`);
}

async function ask() {
  // Who does not look costs nothing.
  if (document.hidden) return setTimeout(ask, EVERY_MS);
  try {
    const answer = await fetch("data.json");
    if (!answer.ok) throw new Error(await answer.text());
    const data = await answer.json();
    // The first figures need two readings.
    if (!data.ready) return setTimeout(ask, EVERY_MS / 8);
    state.data = data;
    remember(data);
    draw();
  } catch (error) {
    element("summary").textContent = `no answer: ${error.message}`;
  }
  setTimeout(ask, EVERY_MS);
}

// Proxies record requests only while this asks.
async function askRequests() {
  const requests = state.requests;
  if (!document.hidden && state.view === "requests" && !requests.paused) {
    const show = requests.show;
    try {
      const answer = await fetch(`requests.json?show=${show}&after=${requests.after}`);
      if (!answer.ok) throw new Error(await answer.text());
      const page = await answer.json();
      if (requests.show === show) {
        requests.records = [...page.records.reverse(), ...requests.records].slice(0, MOST_RECORDS);
        Object.assign(requests, { after: page.next, missed: page.missed, problem: page.problem });
        if (state.view === "requests") draw();
      }
    } catch (error) {
      element("summary").textContent = `no answer: ${error.message}`;
    }
  }
  setTimeout(askRequests, EVERY_MS / 2);
}

function follow() {
  const [view, chosen, open] = decodeURIComponent(location.hash.slice(1)).split(":");
  if (VIEWS.includes(view)) state.view = view;
  if (state.view === "records") askRecords();
  state.chosen = chosen || null;
  state.open = new Set((open || "").split(",").filter((part) => PARTS.some(([name]) => name === part)));
  for (const part of element("parts").children) part.open = state.open.has(part.dataset.part);
  draw();
}

for (const view of VIEWS) element(view).addEventListener("click", () => { state.view = view; if (view === "records") askRecords(); draw(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") { state.chosen = null; draw(); } });
addEventListener("hashchange", follow);
follow();
ask();
askRequests();
