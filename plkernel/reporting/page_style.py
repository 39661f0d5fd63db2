"""The style sheet of the report page: light, dark and print."""

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1b; --soft: #5c5f66; --line: #d5d7db; --paper: #fff;
  --card: #f4f5f6; --mark: #a83f08; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7ea; --soft: #a2a6ae; --line: #3c4048; --paper: #16181b; --card: #1f2226; --mark: #f0a36b; }
  figure svg { filter: brightness(1.25); }
}
body { margin: 2.5rem auto; max-width: 60rem; padding: 0 1.25rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p, li, figcaption, caption { max-width: 46rem; }
.soft, figcaption, caption, .interval { color: var(--soft); }
figcaption, caption, .soft { font-size: .875rem; }
.summary, .warnings { border-left: 3px solid var(--ink); padding-left: 1rem; margin: 1rem 0; }
.warnings { border-color: var(--mark); }
.summary p, .warnings p { margin: .35rem 0; }
.label { color: var(--mark); font-weight: 600; text-decoration: none; }
figure { margin: 0 0 1.8rem; }
figure svg { width: 100%; height: auto; }
figure text { font-family: system-ui, sans-serif !important; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; margin: .4rem 0 1rem; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .3rem 1.1rem .3rem 0; text-align: left; vertical-align: top; }
thead th { border-bottom: 1px solid var(--ink); vertical-align: bottom; }
th { font-weight: 600; line-height: 1.35; }
tbody th { white-space: nowrap; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
thead th.number { max-width: 8.5rem; }
.interval { display: block; font-size: .8rem; }
pre { font: .8rem/1.45 ui-monospace, monospace; background: var(--card); padding: .7rem .9rem; margin: 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.group th { padding-top: .9rem; border-bottom: 1px solid var(--soft); }
tbody:first-of-type .group th { padding-top: .4rem; }
.notes { color: var(--soft); font-size: .875rem; max-width: 46rem; }
.notes p, .sentences p { margin: .2rem 0; }
.sentences { font-size: .9rem; max-width: 52rem; }
details { margin: .6rem 0 1rem; }
summary { cursor: pointer; font-weight: 600; font-size: .9375rem; padding: .15rem 0; }
details > :nth-child(2) { margin-top: .6rem; }
.value { overflow-wrap: anywhere; }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --card: #f4f4f4;
    --mark: #8a3300; }
  body { margin: 0; padding: 0; max-width: none; font-size: 10pt; }
  th, td { padding-right: .6rem; }
  td.number { white-space: normal; }
  .wide { overflow: visible; }
  details:not(.screen)::details-content { content-visibility: visible; block-size: auto; }
  details.screen { display: none; }
  summary { list-style: none; break-after: avoid; }
  table, caption, figcaption, .soft, .notes, .sentences { font-size: 8pt; }
  .interval { font-size: 7pt; white-space: nowrap; }
  .group { break-after: avoid; }
  figure svg { filter: none; }
  figure, tr, pre { break-inside: avoid; }
  h2, caption { break-after: avoid; }
}
"""
