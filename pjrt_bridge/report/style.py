"""The style sheet of a report's page, in light and dark colours."""

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b2330;--dim:#56606f;--line:#dbe1ea;
--card:#f5f7fa;--device:#dceafe;--device-edge:#2f6fde;--device-ink:#12397d;--device-band:#f1f6fe;
--host:#fdebc8;--host-edge:#c07a12;--host-ink:#6b3b04;--host-band:#fef8ec;--arrow:#56606f;
--copied:#a5310b;--aim:#fff3b0}
@media(prefers-color-scheme:dark){:root{--paper:#11161d;--ink:#e4e9f0;--dim:#9ba6b5;--line:#2b3442;
--card:#19202a;--device:#173358;--device-edge:#5b9bff;--device-ink:#d3e5ff;--device-band:#141d2a;
--host:#46310d;--host-edge:#dfa03c;--host-ink:#ffe6b8;--host-band:#1e1a13;--arrow:#9ba6b5;
--copied:#ff9d73;--aim:#4a4415}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 24px 64px}
h1{margin:0;font-size:26px;overflow-wrap:anywhere}
h2{margin:0 0 10px;font-size:18px;overflow-wrap:anywhere}
h2 small{font-weight:400;font-size:14px;color:var(--dim);margin-left:6px}
.summary{margin:4px 0 18px;font-size:17px;color:var(--dim);overflow-wrap:anywhere}
section{margin-top:30px}
code,.name{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
code{font-size:12.5px;overflow-wrap:anywhere}
.bar{height:8px;border-radius:4px;background:var(--host-edge);overflow:hidden;margin-bottom:14px}
.bar div{height:100%;background:var(--device-edge)}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:0}
.numbers>div{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:10px 14px}
.numbers dt{color:var(--dim);font-size:13px}
.numbers dd{margin:0}
.numbers b{display:block;font-size:21px;line-height:1.3}
.numbers span{color:var(--dim);font-size:12.5px;display:block;line-height:1.35;
overflow-wrap:anywhere}
.advice ul,.plain ul{margin:0;padding-left:20px}
.advice li,.plain li{margin-bottom:7px;overflow-wrap:anywhere}
.advice{border:1px solid var(--line);border-left:4px solid var(--device-edge);border-radius:8px;
padding:14px 18px 8px}
.scroll{overflow-x:auto}
figure{margin:0 0 12px}
figcaption{color:var(--dim);font-size:13px;margin-top:2px}
summary{cursor:pointer;color:var(--dim)}
summary h2{display:inline;color:var(--ink)}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;vertical-align:top;padding:7px 10px;border-top:1px solid var(--line)}
thead th{border-top:0;color:var(--dim);font-weight:500;font-size:13px;white-space:nowrap}
td:nth-child(3){min-width:200px}
td:nth-child(4){min-width:260px}
td:nth-child(n+5),th:nth-child(n+5){text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}
td.copied{color:var(--copied)}
td ul{margin:0;padding:0;list-style:none}
td li+li{margin-top:6px}
td details{display:inline-block}
tr{scroll-margin-top:40px}
tr:target{background:var(--aim)}
td code:not(.source){overflow-wrap:break-word;background:var(--card);border-radius:4px;
padding:1px 5px}
.source{display:block;color:var(--dim)}
.place,.kind{border-radius:5px;padding:1px 7px;font-size:12.5px;white-space:nowrap}
.place.device{background:var(--device);color:var(--device-ink)}
.place.host,.kind{background:var(--host);color:var(--host-ink)}
.picture{display:block}
.band.device{fill:var(--device-band)}
.band.host{fill:var(--host-band)}
.lane{font-size:13px;fill:var(--dim)}
.box{stroke-width:1.4}
.box.device{fill:var(--device);stroke:var(--device-edge)}
.box.host{fill:var(--host);stroke:var(--host-edge)}
a.segment:hover .box,a.segment:focus .box{stroke-width:3}
.segment text{font-size:12px}
.segment.device text{fill:var(--device-ink)}
.segment.host text{fill:var(--host-ink)}
.segment .number{font-weight:700;font-size:13px}
.segment .name{font-size:11px}
.edge,.leaving,.end{fill:none;stroke:var(--arrow);stroke-width:1.5}
.picture marker path{fill:var(--arrow)}
text.note{fill:var(--dim);stroke:var(--paper);stroke-width:4;paint-order:stroke;font-size:10.5px}
"""
