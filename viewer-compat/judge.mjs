// Compares what the viewer shows of a profile with what the profile says.

// The sort metrics that the viewer offers, by whether block lifetimes are recorded.
const HEAP_METRICS = [
  "Total (bytes)",
  "Total (blocks)",
  "Total (blocks), tiny",
  "Total (blocks), short-lived",
  "At t-gmax (bytes)",
  "At t-end (bytes)",
];
const AD_HOC_METRICS = ["Total (units)", "Total (events)", "Total (events), tiny"];

const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
const FRAME_LINE = /^[\s│├└─▼▶]*[#^](\d+): (.*)$/;

// The complaints about what `seen` (from `Viewer.view`) shows of `profile`, saved under `name`. Empty when all is well.
export function complaints(profile, name, seen) {
  const found = [];
  const expect = (isTrue, complaint) => {
    if (!isTrue) found.push(complaint);
  };
  expect(seen.error === undefined, `the viewer shows an error: ${seen.error}`);
  expect(seen.exceptions.length === 0, `the page threw: ${seen.exceptions.join("; ")}`);
  if (found.length > 0) return found;

  expect(seen.title.includes(name), `the title "${seen.title}" does not name ${name}`);
  for (const line of invocationLines(profile)) {
    expect(seen.text.includes(line), `not shown: ${line.trim()}`);
  }
  const metrics = profile.bklt ? HEAP_METRICS : AD_HOC_METRICS;
  const offered = seen.metrics.map((metric) => metric.label);
  expect(
    JSON.stringify(offered) === JSON.stringify(metrics),
    `the sort metrics are [${offered.join("; ")}], not [${metrics.join("; ")}]`,
  );
  for (const metric of seen.metrics) {
    found.push(...metricComplaints(profile, metric).map((text) => `${metric.label}: ${text}`));
  }
  return found;
}

function invocationLines(profile) {
  const time = (count) => `${number.format(count)} ${profile.tu}`;
  const lines = [
    `  Mode:    ${profile.mode}\n`,
    `  Command: ${profile.cmd}\n`,
    `  PID:     ${profile.pid}\n`,
    `  t-end:  ${time(profile.te)}\n`,
  ];
  if (profile.bklt) lines.push(`  t-gmax: ${time(profile.tg)} (`);
  return lines;
}

function metricComplaints(profile, metric) {
  const found = [];
  const expect = (isTrue, complaint) => {
    if (!isTrue) found.push(complaint);
  };
  expect(metric.error === undefined, `the viewer shows an error: ${metric.error}`);
  expect(metric.isVisible, "no tree is visible");
  expect(/PP 1\/1 .*\{/.test(metric.text), "the tree has no root");
  expect(metric.text.includes("PP significance threshold: "), "the tree does not end");

  const frames = [];
  for (const line of metric.text.split("\n")) {
    const frame = FRAME_LINE.exec(line);
    if (frame) frames.push(frame[2]);
    else if (!line.includes("Command: ")) {
      expect(!/NaN|undefined|Infinity|null/.test(line), `not a figure: ${line.trim()}`);
    }
  }
  for (const node of metric.nodes.filter((node) => node.isSignificant)) {
    const hasFrame = node.text.split("\n").some((line) => FRAME_LINE.test(line));
    expect(hasFrame, "a node shows no frame");
  }
  const known = new Set(profile.ftbl);
  const unknown = frames.find((frame) => !known.has(frame));
  expect(unknown === undefined, `a frame that the profile does not have: ${unknown}`);
  expect(frames[0] === profile.ftbl[0], `the first frame is ${frames[0]}`);

  const sum = (field) => profile.pps.reduce((total, pp) => total + pp[field], 0);
  const [bytes, blocks] = [profile.bsu ?? "bytes", profile.bksu ?? "blocks"];
  if (metric.label === `Total (${bytes})` && profile.pps.length > 0) {
    const total = new RegExp(
      `Total: +${number.format(sum("tb"))} ${bytes} .* in ${number.format(sum("tbk"))} ${blocks} `,
    );
    expect(total.test(metric.text), `the root does not show ${total}`);
    // Every point with a hundredth of all bytes is significant, and so shown with all its frames.
    const largest = profile.pps.reduce((most, pp) => (pp.tb > most.tb ? pp : most));
    const missing = largest.fs.map((idx) => profile.ftbl[idx]).filter((frame) => !frames.includes(frame));
    expect(missing.length === 0, `frames of the largest point are not shown: ${missing.join("; ")}`);
  }
  return found;
}
