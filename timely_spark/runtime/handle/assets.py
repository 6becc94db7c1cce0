"""The style sheet and the script of the console, as the package serves them: nothing comes from elsewhere."""

from __future__ import annotations

STYLE = """
:root{--ground:#fff;--ink:#1f2328;--faint:#656d76;--line:#d8dee4;--card:#f6f8fa;--box:#fff;--call:#f3f0ff;
--source:#e7f6ec;--end:#fff3d6;--loop:#eff4ff;--link:#0a58ca;--hot:#d1480f;--good:#1a7f37;--bad:#c62828;
--warn:#9a6700;--c0:#2563eb;--c1:#d1480f;--c2:#1a7f37;--c3:#8250df;--c4:#b08800;--c5:#0e7490;--c6:#be185d;
--c7:#57606a;color-scheme:light dark}@media (prefers-color-scheme:dark){:root{--ground:#0d1117;
--ink:#e6edf3;--faint:#9aa4b0;--line:#30363d;--card:#161b22;--box:#161b22;--call:#231c3d;--source:#10291a;
--end:#2f2610;--loop:#101c33;--link:#79b8ff;--hot:#ff8a4c;--good:#56d364;--bad:#ff7b72;--warn:#e3b341;
--c0:#79b8ff;--c1:#ff9b5e;--c2:#56d364;--c3:#c297ff;--c4:#e3b341;--c5:#56d4dd;--c6:#ff8fc7;--c7:#b1bac4}}*{
box-sizing:border-box}body{font:14px/1.45 system-ui,sans-serif;margin:0;background:var(--ground);
color:var(--ink)}main{max-width:1500px;margin:0 auto;padding:0 16px 40px}a{color:var(--link);
text-decoration:none} a:hover{text-decoration:underline}a:focus-visible,summary:focus-visible{
outline:2px solid var(--link);outline-offset:2px;border-radius:4px}h2{font-size:15px;margin:22px 0 8px} h3{
font-size:13px;margin:14px 0 4px;color:var(--faint)}nav{display:flex;flex-wrap:wrap;gap:8px;
padding:10px 16px;border-bottom:1px solid var(--line);background:var(--card)}nav a{display:block;
padding:5px 10px;border:1px solid var(--line);border-left-width:4px;border-radius:6px;
background:var(--ground);color:var(--ink);max-width:100%}nav a[aria-current]{outline:2px solid var(--link)}
nav small{color:var(--faint);display:block}.good{border-color:var(--good)!important} .bad{
border-color:var(--bad)!important}.warn{border-color:var(--warn)!important} .rest{
border-color:var(--faint)!important}#first{display:flex;flex-wrap:wrap;gap:10px 26px;align-items:center;
padding:14px 0 10px}#first h1{font-size:20px;margin:0;overflow-wrap:anywhere} #first dl{margin:0} #first dt{
font-size:11px;color:var(--faint)}#first dd{margin:0;font-size:15px;line-height:26px;
font-variant-numeric:tabular-nums}
.state{padding:2px 10px;border-radius:12px;border:2px solid;font-weight:600}.say{
border:1px solid var(--line);border-left:4px solid var(--faint);background:var(--card);padding:8px 12px;
border-radius:4px;margin:6px 0;overflow-wrap:anywhere} .say pre{margin:4px 0 0;max-height:15em;
overflow:auto;white-space:pre-wrap;
font:12px/1.4 ui-monospace,Menlo,Consolas,monospace} .say b{display:block}.columns{display:grid;
grid-template-columns:minmax(0,1fr);gap:0 28px}@media (min-width:1100px){.columns{
grid-template-columns:minmax(0,1fr) minmax(0,1fr)}}.charts{display:flex;flex-wrap:wrap;gap:8px 28px}figure{
margin:0;max-width:100%} figcaption{font-size:12px;color:var(--faint)}.chart{display:flex;flex-wrap:wrap;
gap:10px;align-items:flex-start}.chart ul{list-style:none;margin:4px 0;padding:0;font-size:11px}
.chart li::before{content:"";display:inline-block;width:10px;height:3px;margin-right:6px;
vertical-align:middle;background:currentColor}svg{max-width:100%;height:auto} svg text{fill:var(--faint);
font-size:10px} .spark,.bar{vertical-align:middle}.drawn{overflow:auto;max-height:80vh;cursor:grab;
border:1px solid var(--line);border-radius:6px;padding:4px}.drawn svg{max-width:none} .drawn text{
font-size:11px} .drawn text.way{font-size:9px;paint-order:stroke;stroke:var(--ground);stroke-width:3px}
.ground{fill:none}.step rect:first-of-type{fill:var(--box);stroke:var(--faint)}
.step.source rect:first-of-type{fill:var(--source)}.step.end rect:first-of-type{fill:var(--end)}
.step.call rect:first-of-type{fill:var(--call)}.step text.name{fill:var(--ink)} .step text.now{
fill:var(--c0);font-size:9.5px} .step.hot rect:first-of-type{stroke:var(--hot);stroke-width:3}
.step.chosen rect:first-of-type{stroke:var(--link);stroke-width:3}.step.busy rect:first-of-type{
stroke:var(--good);stroke-width:2} a:focus-visible .step rect:first-of-type{stroke:var(--link);
stroke-width:3}.frame rect{fill:var(--loop);stroke:var(--c0)} .frame text{fill:var(--c0)} .frame.call rect{
fill:var(--call);stroke:var(--c3)}.frame.call text{fill:var(--c3)} .frame.region rect{fill:var(--card);
stroke:var(--faint)}.arrow{stroke:var(--faint)} .tip{fill:var(--faint)} .arrow.exchange{stroke:var(--hot)}
.tip.exchange{fill:var(--hot)}.arrow.feedback{stroke:var(--c0)} .tip.feedback{fill:var(--c0)}polyline{
fill:none;stroke:currentColor;stroke-width:1.5} circle{fill:currentColor}
.at:hover,svg rect.chosen{fill:var(--line);fill-opacity:.6} svg[data-span]{cursor:crosshair;user-select:none}
 .axis{stroke:var(--faint)}.grid{
stroke:var(--line)} .limit{stroke:var(--bad);stroke-dasharray:5 4} .bar rect{fill:var(--c0)}.timeline rect{
fill:var(--c0)} .timeline .open rect{fill:var(--warn)} .timeline .late rect{fill:var(--bad)}
.timeline g .waits{fill:var(--faint)}.c0{
color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{
color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}table{border-collapse:collapse;font-size:12.5px}
td,th{padding:2px 12px 2px 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top} th{
color:var(--faint);font-weight:500;white-space:nowrap} .number{text-align:right;
font-variant-numeric:tabular-nums}td{overflow-wrap:anywhere;white-space:pre-line}
#step td:first-child{white-space:nowrap} .scroll{overflow-x:auto}
code,input{font:12px ui-monospace,Menlo,Consolas,monospace} input{width:100%;padding:5px 8px;color:var(--ink);
background:var(--ground);border:1px solid var(--line);border-radius:4px} footer{color:var(--faint);
margin-top:24px}#lost{display:none} .lost #lost{display:block}@media (max-width:640px){
main{padding:0 10px 30px} td,th{padding-right:8px} #first{gap:8px 16px}}
"""

SCRIPT = """
"use strict";
const keep = () => document.activeElement ? document.activeElement.getAttribute("href") : null;
let chosen = null;
const show = parts => {
  const href = keep();
  for (const [id, html] of Object.entries(parts)) {
    const at = document.getElementById(id);
    if (!at || at.querySelector("input:focus") || at.contains(chosen?.chart ?? null)) continue;
    const inner = at.querySelector(".drawn"), top = inner ? [inner.scrollLeft, inner.scrollTop] : null;
    at.innerHTML = html;
    const now = at.querySelector(".drawn");
    if (now) resize();
    if (now && top) [now.scrollLeft, now.scrollTop] = top;
  }
  if (href && keep() !== href) {
    const again = [...document.querySelectorAll("a")].find(a => a.getAttribute("href") === href);
    if (again) again.focus({preventScroll: true});
  }
};
// the drawing: its size, as a factor, goes along to the page that a click opens; its window scrolls
const drawn = () => document.querySelector(".drawn");
let zoom = Number(sessionStorage.getItem("zoom")) || 1, drag = null, moved = false;
const resize = () => {
  const svg = drawn()?.querySelector("svg");
  for (const side of svg ? ["width", "height"] : []) svg.setAttribute(side, svg.viewBox.baseVal[side] * zoom);
};
const zoomBy = (factor, x, y) => {
  const at = drawn(), before = zoom;
  if (!at) return;
  [x, y] = [x ?? at.clientWidth / 2, y ?? at.clientHeight / 2];
  sessionStorage.setItem("zoom", zoom = Math.min(4, Math.max(0.1, zoom * factor)));
  const to = [at.scrollLeft + x, at.scrollTop + y].map(place => place * zoom / before);
  resize();
  at.scrollTo(to[0] - x, to[1] - y);
};
const fit = () => {
  const box = drawn()?.querySelector("svg")?.viewBox.baseVal;
  if (box) zoomBy(Math.min(1, (drawn().clientWidth - 8) / box.width) / zoom);
};
const keys = {"+": () => zoomBy(1.25), "-": () => zoomBy(0.8), "0": fit, "1": () => zoomBy(1 / zoom)};
document.addEventListener("wheel", event => {
  const at = event.target.closest(".drawn");
  if (!at || !(event.ctrlKey || event.metaKey)) return;  // a pinch has ctrlKey, too
  event.preventDefault();
  const box = at.getBoundingClientRect();
  zoomBy(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
}, {passive: false});
document.addEventListener("pointerdown", event => {
  const at = event.pointerType === "mouse" && event.button === 0 && event.target.closest(".drawn");
  moved = false;
  drag = at ? {x: at.scrollLeft + event.clientX, y: at.scrollTop + event.clientY, from: event} : null;
});
document.addEventListener("pointermove", event => {
  if (!drag || !drawn()) return;
  moved ||= Math.hypot(event.clientX - drag.from.clientX, event.clientY - drag.from.clientY) > 4;
  if (moved) drawn().scrollTo(drag.x - event.clientX, drag.y - event.clientY);
});
document.addEventListener("pointerup", () => { drag = null; });
document.addEventListener("dragstart", event => { if (drag) event.preventDefault(); });
document.addEventListener("click", event => {
  if (moved && event.target.closest(".drawn")) event.preventDefault();  // it was moved, not clicked
  moved = false;
}, true);
resize();
// a span of time, drawn across a chart: another address; the page that it loads is where this one was
const along = (chart, event) => {
  const [low, high, left, right] = chart.dataset.span.split(" ").map(Number);
  const box = chart.getBoundingClientRect();
  const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
  const inside = Math.min(right, Math.max(left, x));
  return {x: inside, time: low + (high - low) * (inside - left) / (right - left)};
};
document.addEventListener("pointerdown", event => {
  const mouse = event.pointerType === "mouse" && event.button === 0;
  const chart = mouse && event.target.closest("svg[data-span]");
  if (!chart) return;
  const bar = chart.appendChild(document.createElementNS(chart.namespaceURI, "rect"));
  bar.setAttribute("class", "chosen");
  bar.setAttribute("height", "100%");
  chosen = {chart, bar, from: along(chart, event)};
});
document.addEventListener("pointermove", event => {
  if (!chosen) return;
  const to = along(chosen.chart, event).x;
  chosen.bar.setAttribute("x", Math.min(to, chosen.from.x));
  chosen.bar.setAttribute("width", Math.abs(to - chosen.from.x));
});
document.addEventListener("pointerup", event => {
  if (!chosen) return;
  const {chart, bar, from} = chosen, to = along(chart, event);
  bar.remove();
  chosen = null;
  if (Math.abs(to.x - from.x) < 4) return;
  const address = new URL(location.href);
  address.searchParams.delete("row");
  address.searchParams.set("since", Math.min(from.time, to.time).toFixed(3));
  address.searchParams.set("until", Math.max(from.time, to.time).toFixed(3));
  location.href = address.href;
});
addEventListener("pagehide", () => sessionStorage.setItem("place", scrollY));
scrollTo(0, Number(sessionStorage.getItem("place")));
const events = new EventSource("/events" + location.search);
events.onmessage = event => { document.body.classList.remove("lost"); show(JSON.parse(event.data)); };
events.onerror = () => document.body.classList.add("lost");
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const ask = event.target.dataset.ask;
  if (ask && event.key === "Enter") location.href = ask + encodeURIComponent(event.target.value);
  if (ask) return;
  keys[event.key]?.();
  const ways = {n: "next", p: "before", e: "expand", Escape: "close"};
  const times = {i: "in", o: "out", ",": "earlier", ".": "later", a: "all"};
  const at = {...ways, ...times}[event.key];
  const link = at && document.querySelector(`a[data-key~="${at}"]`);
  if (link) link.click();
});
"""
