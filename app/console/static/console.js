// Charts from the tables beside them, and forms whose empty fields stay out of the address.
"use strict";

(() => {
  const SECOND = 1e6, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE;
  const rounded = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, ""));

  const duration = (us) => {
    if (us == null) return "–";
    if (us < 0) return "−" + duration(-us);
    if (us < 1e3) return us.toFixed(0) + " µs";
    if (us < SECOND) return rounded(us / 1e3) + " ms";
    if (us < MINUTE) return rounded(us / SECOND) + " s";
    if (us < HOUR) return rounded(us / MINUTE) + " min";
    return rounded(us / HOUR) + " h";
  };
  const count = (value) => {
    if (value == null) return "–";
    for (const [least, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
      if (Math.abs(value) >= least) return rounded(value / (unit === " k" ? 1e3 : least)) + unit;
    }
    return String(Math.round(value * 100) / 100);
  };

  const number = (cell) => (cell.dataset.y === "" ? null : Number(cell.dataset.y));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // The figure's table as uPlot takes it: columns of numbers, the times first.
  const columns = (figure) => {
    const rows = [...figure.querySelectorAll("details tbody tr")];
    const names = [...figure.querySelectorAll("details th[data-tone]")];
    const times = rows.map((row) => Number(row.querySelector("th").dataset.x));
    const series = names.map((_, at) => rows.map((row) => number(row.querySelectorAll("td")[at])));
    return { names, data: [times, ...series] };
  };

  const draw = (figure) => {
    const plot = figure.querySelector(".plot");
    const { names, data } = columns(figure);
    if (!data[0].length || typeof uPlot === "undefined") return;
    const words = figure.dataset.chart === "us" ? duration : count;
    const used = names.map((_, at) => data[at + 1].some((value) => value));
    const kept = names.filter((_, at) => used[at] || names.length === 1);
    const shown = [data[0], ...data.slice(1).filter((_, at) => used[at] || names.length === 1)];
    const least = words === duration ? 1e3 : 1;
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    plot.replaceChildren();
    new uPlot({
      width: plot.clientWidth, height: 200, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "UTC"),
      cursor: { drag: { x: false, y: false }, y: false },
      scales: { y: { range: (_, low, high) => [Math.min(low ?? 0, 0), Math.max(high ?? least, least)] } },
      axes: [
        { ...axis, values: [
          [86400, "{MMM} {D}", null, null, null, null, null, null, 1],
          [3600, "{HH}:{mm}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
          [60, "{HH}:{mm}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
        ] },
        { ...axis, size: 62, values: (_, marks) => marks.map(words) },
      ],
      series: [
        { label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
        ...kept.map((name) => ({
          label: name.textContent, stroke: colour(name.dataset.tone), width: 2,
          fill: kept.length === 1 ? colour(name.dataset.tone + "-tint") : undefined,
          value: (_, value) => words(value),
          // A line needs two.
          ...(data[0].length === 1 ? { points: { show: true, size: 7 } } : {}),
        })),
      ],
    }, shown, plot);
  };
  const drawAll = () => document.querySelectorAll("figure[data-chart]").forEach(draw);

  let pending;
  const soon = () => { clearTimeout(pending); pending = setTimeout(drawAll, 120); };
  drawAll();
  window.addEventListener("resize", soon);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // Also what htmx sends, which reads forms the same way.
  document.addEventListener("formdata", (event) => {
    if (!event.target.matches("form[data-sparse]")) return;
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });
})();
