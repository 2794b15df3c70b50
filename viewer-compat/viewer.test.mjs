// What DHAT's viewer shows and rejects: the controls, and the profiles that the environment variable PROFILES names,
// separated by colons. SCREENSHOTS names a directory for pictures of the latter.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { ACCEPTED, MISSHOWN, REJECTED } from "./controls.mjs";
import { complaints } from "./judge.mjs";
import { Viewer, installed } from "./viewer.mjs";

const { viewer, browser } = await installed();
const isInstalled = viewer !== undefined && browser !== undefined;
const profiles = (process.env.PROFILES ?? "").split(":").filter(Boolean);

if (!isInstalled) {
  console.error("****************************************************************");
  console.error("The viewer is NOT tested: dh_view.html or Chromium is missing.");
  console.error("On Debian: apt-get install valgrind chromium");
  console.error("****************************************************************");
}

test("viewer and browser are installed where it counts", () => {
  assert.ok(isInstalled || !process.env.CI, `viewer: ${viewer}, browser: ${browser}`);
});

describe("DHAT's viewer", { skip: !isInstalled }, () => {
  let opened;
  let directory;

  before(async () => {
    opened = await Viewer.open();
    directory = await mkdtemp(join(tmpdir(), "viewer-profiles-"));
  });
  after(async () => {
    await opened?.close();
    if (directory) await rm(directory, { recursive: true });
  });

  async function view(profile) {
    const path = join(directory, "profile.json");
    await writeFile(path, JSON.stringify(profile));
    return opened.view(path);
  }

  for (const [name, profile] of Object.entries(ACCEPTED)) {
    test(`shows a profile with ${name}`, async () => {
      assert.deepEqual(complaints(profile, "profile.json", await view(profile)), []);
    });
  }

  for (const [name, [profile, error]] of Object.entries(REJECTED)) {
    test(`rejects a profile with ${name}`, async () => {
      const seen = await view(profile);
      assert.match(seen.error ?? "no error", error);
      assert.equal(seen.text, "");
      assert.notDeepEqual(complaints(profile, "profile.json", seen), []);
    });
  }

  for (const [name, [profile, complaint]] of Object.entries(MISSHOWN)) {
    test(`the judge sees that ${name} is shown wrongly`, async () => {
      const found = complaints(profile, "profile.json", await view(profile));
      assert.match(found.join("\n"), complaint);
    });
  }

  test("the judge sees when another profile is shown", async () => {
    const other = structuredClone(ACCEPTED.heap);
    Object.assign(other, { pid: 1, te: 99_999, cmd: "other" });
    other.pps[0].tb += 1;
    other.ftbl[2] = "0x5020: app::shrink (app/src/tree.rs:7:9)";
    const found = complaints(other, "other.json", await view(ACCEPTED.heap)).join("\n");
    for (const part of [/title/, /PID: +1$/m, /Command: other/, /t-end: +99,999/, /app::grow/, /3,517 bytes/]) {
      assert.match(found, part);
    }
  });

  test("a text that is no JSON is rejected", async () => {
    const path = join(directory, "broken.json");
    await writeFile(path, '{"dhatFileVersion": 2,');
    assert.match((await opened.view(path)).error, /SyntaxError/);
  });

  test("check.mjs tells by its exit status", async () => {
    const run = async (profile) => {
      const path = join(directory, "checked.json");
      await writeFile(path, JSON.stringify(profile));
      const script = new URL("check.mjs", import.meta.url).pathname;
      const args = [script, "--screenshots", directory, path];
      return promisify(execFile)(process.execPath, args).then(() => 0, (error) => error.code);
    };
    assert.equal(await run(ACCEPTED.heap), 0);
    const picture = await readFile(join(directory, "1-checked.png"));
    assert.equal(picture.subarray(1, 4).toString(), "PNG");
    assert.equal(await run(REJECTED["a wrong version"][0]), 1);
  });

  for (const path of profiles) {
    test(`shows ${path}`, async () => {
      const name = basename(path);
      const directory = process.env.SCREENSHOTS;
      if (directory) await mkdir(directory, { recursive: true });
      const screenshot = directory && join(directory, name.replace(/\.json$/, "") + ".png");
      const profile = JSON.parse(await readFile(path, "utf8"));
      assert.ok(profile.pps.length > 0, "the profile is empty");
      assert.deepEqual(complaints(profile, name, await opened.view(path, screenshot)), []);
    });
  }
});
