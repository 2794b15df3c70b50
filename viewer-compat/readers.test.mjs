// Other programs that read the file: dhat-to-flamegraph 2.1.0, and the frame form that the Firefox Profiler's importer and
// others split. The environment variable PROFILES names profiles to test beside the control, separated by colons.
// FLAMEGRAPH names the program where it is not in the PATH:
// cargo install dhat-to-flamegraph --version 2.1.0 --locked --debug --root DIR

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { adHocProfile, heapProfile } from "./controls.mjs";

const flamegraph = process.env.FLAMEGRAPH ?? "dhat-to-flamegraph";
const profiles = (process.env.PROFILES ?? "").split(":").filter(Boolean);
const FRAME = /^0x[0-9a-f]+: (.+) \((.+):(\d+):(\d+)\)$/;

async function run(...args) {
  const { stdout } = await promisify(execFile)(flamegraph, args, { maxBuffer: 1 << 30 });
  return stdout;
}

const isInstalled = await run("--help").then(() => true, () => false);
if (!isInstalled) {
  console.error("****************************************************************");
  console.error("dhat-to-flamegraph is NOT tested: it is missing. To install it:");
  console.error("cargo install dhat-to-flamegraph --version 2.1.0 --locked --debug");
  console.error("****************************************************************");
}

test("dhat-to-flamegraph is installed where it counts", () => {
  assert.ok(isInstalled || !process.env.CI, flamegraph);
});

// What dhat-to-flamegraph's folded format should be: a line for each point, frames in the file's order.
function folded(profile, field) {
  const line = (pp) => `${pp.fs.map((idx) => profile.ftbl[idx]).join(";")} ${pp[field]}\n`;
  return profile.pps.map(line).join("");
}

describe("dhat-to-flamegraph", { skip: !isInstalled }, () => {
  let directory;
  const paths = [...profiles];

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "reader-profiles-"));
    for (const profile of [heapProfile(), adHocProfile()]) {
      const path = join(directory, `${profile.mode}.json`);
      await writeFile(path, JSON.stringify(profile));
      paths.push(path);
    }
  });
  after(() => rm(directory, { recursive: true }));

  test("reads every metric of every profile", async () => {
    assert.ok(paths.length >= 2);
    for (const path of paths) {
      const profile = JSON.parse(await readFile(path, "utf8"));
      const fields = { total: "tb" };
      if (profile.bklt) Object.assign(fields, { max: "mb", end: "eb", "heap-max": "gb" });
      for (const [metric, field] of Object.entries(fields)) {
        const read = await run("--format", "folded", "--metric", metric, path);
        assert.equal(read, folded(profile, field), `${metric} of ${path}`);
      }
    }
  });

  test("draws every profile", async () => {
    for (const path of paths) {
      assert.match(await run(path), /<svg[\s\S]*<\/svg>/);
    }
  });

  test("refuses a figure that is no integer", async () => {
    const broken = heapProfile();
    broken.pps[0].tb = 1.5;
    const path = join(directory, "broken.json");
    await writeFile(path, JSON.stringify(broken));
    await assert.rejects(run(path), /invalid type: floating point/);
  });
});

test("every frame has the form that importers split", async () => {
  assert.doesNotMatch("[root]", FRAME);
  assert.doesNotMatch("0x1: f (in /lib/x.so)", FRAME);
  const tables = [heapProfile().ftbl];
  for (const path of profiles) tables.push(JSON.parse(await readFile(path, "utf8")).ftbl);
  for (const [root, ...frames] of tables) {
    assert.equal(root, "[root]");
    for (const frame of frames) assert.match(frame, FRAME);
  }
});
